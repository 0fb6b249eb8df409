#include "text/tokenizer_file.h"

#include <simdjson.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "text/byte_level.h"
#include "text/json_fields.h"

namespace halfbyte {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kMaxNesting = 64;
constexpr size_t kMaxAddedTokenBytes = 512;
constexpr int64_t kMostIds = 1 << 20;  // four times the largest vocabulary there is

Status RequireNoText(const JsonFields& fields, std::string_view key) {
  HB_ASSIGN_OR_RETURN(const auto value, fields.String(key));
  if (value.value_or("").empty()) return {};
  return MakeError("{} is {}, which is not supported; {}", fields.Describe(key), Quote(*value),
                   kEncodeElsewhere);
}

Result<AddedToken> ReadAddedToken(dom::element value, const std::string& source,
                                  const std::string& where) {
  HB_ASSIGN_OR_RETURN(const JsonFields fields,
                      JsonFields::Of(value, source, where,
                                     {"id", "content", "single_word", "lstrip", "rstrip",
                                      "normalized", "special"}));
  HB_ASSIGN_OR_RETURN(const auto id, fields.Int("id"));
  HB_ASSIGN_OR_RETURN(const auto content, fields.String("content"));
  if (!id || !content) return MakeError("{}: field {} lacks id or content", source, where);
  if (*id < 0 || *id > INT32_MAX) {
    return MakeError("{} is {}, which is no token id", fields.Describe("id"), *id);
  }
  if (content->empty() || content->size() > kMaxAddedTokenBytes) {
    return MakeError("{} has {} bytes; allowed are 1 to {}", fields.Describe("content"),
                     content->size(), kMaxAddedTokenBytes);
  }
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    HB_RETURN_IF_ERROR(RequireBool(fields, key, false));
  }
  HB_ASSIGN_OR_RETURN(const auto special, fields.Bool("special"));
  HB_ASSIGN_OR_RETURN(const auto normalized, fields.Bool("normalized"));
  return AddedToken{static_cast<int32_t>(*id), std::string(*content), special.value_or(false),
                    normalized.value_or(true)};
}

// Vocabulary and added tokens by spelling and by id. Views point into the parsed document.
class Vocabulary {
 public:
  Status Read(dom::object vocab, const std::vector<AddedToken>& added, const std::string& source) {
    ids_.reserve(vocab.size() + added.size());
    for (const auto& [spelling, value] : vocab) {
      int64_t id = -1;
      if (value.get(id) != simdjson::SUCCESS || id < 0 || id >= kMostIds) {
        return MakeError("{}: field model.vocab: token {} has an id that is not in 0..{}", source,
                         Quote(spelling), kMostIds - 1);
      }
      HB_RETURN_IF_ERROR(Insert(spelling, static_cast<int32_t>(id), source));
    }
    // Added tokens that the vocabulary lacks: the reference library numbers them itself, after the
    // vocabulary's count and the added tokens so far.
    const auto count = static_cast<int32_t>(ids_.size());
    int32_t next = count;
    for (const AddedToken& token : added) {
      const auto known = ids_.find(token.content);
      const int32_t id = known == ids_.end() ? next : known->second;
      if (id != token.id) {
        return MakeError("{}: token {} has id {} among the added tokens, but its place makes it {}",
                         source, Quote(token.content), token.id, id);
      }
      if (known == ids_.end()) HB_RETURN_IF_ERROR(Insert(token.content, id, source));
      next = std::max(next, id + 1);
    }
    return {};
  }

  std::optional<int32_t> Find(std::string_view spelling) const {
    const auto it = ids_.find(spelling);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }

  // By id; nullopt where there is no such token.
  const std::vector<std::optional<std::string_view>>& spellings() const { return spellings_; }

 private:
  Status Insert(std::string_view spelling, int32_t id, const std::string& source) {
    if (!ids_.emplace(spelling, id).second) {
      return MakeError("{}: token {} appears twice", source, Quote(spelling));
    }
    const auto index = static_cast<size_t>(id);
    if (index >= spellings_.size()) spellings_.resize(index + 1);
    if (spellings_[index]) {
      return MakeError("{}: tokens {} and {} share id {}", source, Quote(*spellings_[index]),
                       Quote(spelling), id);
    }
    spellings_[index] = spelling;
    return {};
  }

  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<std::optional<std::string_view>> spellings_;
};

Status CheckModel(const JsonFields& model) {
  HB_ASSIGN_OR_RETURN(const auto type, model.String("type"));  // old files lack it
  if (type.value_or("BPE") != "BPE") {
    return MakeError("{} is {}; only \"BPE\" is supported; {}", model.Describe("type"),
                     Quote(*type), kEncodeElsewhere);
  }
  const auto dropout = model.Get("dropout");
  double chance = 0;
  if (dropout && (dropout->get(chance) != simdjson::SUCCESS || chance != 0)) {
    return MakeError("{} is set, which would make ids random; set it to null",
                     model.Describe("dropout"));
  }
  HB_RETURN_IF_ERROR(RequireNoText(model, "continuing_subword_prefix"));
  HB_RETURN_IF_ERROR(RequireNoText(model, "end_of_word_suffix"));
  // Every byte has a token, so an unknown one never arises and these three ask nothing of us.
  HB_RETURN_IF_ERROR(model.String("unk_token"));
  HB_RETURN_IF_ERROR(model.Bool("fuse_unk"));
  HB_RETURN_IF_ERROR(model.Bool("byte_fallback"));
  return {};
}

// The two sides of merge rule `rule`: "a b" or ["a", "b"].
std::optional<std::pair<std::string_view, std::string_view>> MergeSides(dom::element rule) {
  std::string_view joined;
  if (rule.get(joined) == simdjson::SUCCESS) {
    const size_t space = joined.find(' ');
    if (space == std::string_view::npos || joined.find(' ', space + 1) != std::string_view::npos) {
      return std::nullopt;
    }
    return std::pair(joined.substr(0, space), joined.substr(space + 1));
  }
  dom::array sides;
  std::string_view left, right;
  if (rule.get(sides) != simdjson::SUCCESS || sides.size() != 2 ||
      sides.at(0).get(left) != simdjson::SUCCESS || sides.at(1).get(right) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  return std::pair(left, right);
}

Status ReadMerges(dom::array rules, const Vocabulary& vocabulary, const std::vector<bool>& special,
                  const std::string& source, TokenizerFile* file) {
  std::string joined;
  size_t rank = 0;
  for (const dom::element rule : rules) {
    const auto fail = [&](std::string_view what, std::string_view token) {
      return MakeError("{}: field model.merges[{}] {} {}", source, rank, what, Quote(token));
    };
    const auto sides = MergeSides(rule);
    if (!sides) {
      return MakeError("{}: field model.merges[{}] must be \"a b\" or [\"a\", \"b\"]", source,
                       rank);
    }
    joined.assign(sides->first).append(sides->second);
    int32_t ids[3];
    const std::string_view spellings[3] = {sides->first, sides->second, joined};
    for (int i = 0; i < 3; ++i) {
      const auto id = vocabulary.Find(spellings[i]);
      if (!id) return fail("names a token that the vocabulary lacks:", spellings[i]);
      ids[i] = *id;
    }
    const bool builds_special = special[static_cast<size_t>(ids[2])];
    if (builds_special && UnspellBytes(joined) != joined) {
      return fail("would turn ordinary text into the special token", joined);
    }
    // Where the reference library comes to merging, it has found special tokens already.
    if (!builds_special) file->merges.push_back({ids[0], ids[1], ids[2]});
    ++rank;
  }
  return {};
}

// Whether valid UTF-8 has this byte.
bool IsInUtf8(uint8_t byte) { return byte != 0xC0 && byte != 0xC1 && byte < 0xF5; }

Status FillBytes(const Vocabulary& vocabulary, const std::vector<bool>& special,
                 const std::string& source, TokenizerFile* file) {
  const auto& spellings = vocabulary.spellings();
  file->ordinary.assign(spellings.size(), true);
  for (const AddedToken& token : file->added_tokens) {
    file->ordinary[static_cast<size_t>(token.id)] = false;
  }
  file->token_bytes.reserve(spellings.size());
  for (size_t id = 0; id < spellings.size(); ++id) {
    const std::string_view spelling = spellings[id].value_or("");
    std::optional<std::string> bytes;
    if (file->ordinary[id]) bytes = UnspellBytes(spelling);
    if (!bytes) file->ordinary[id] = false;
    file->token_bytes.push_back(bytes ? *std::move(bytes) : std::string(spelling));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = SpellByte(static_cast<uint8_t>(byte));
    const auto id = vocabulary.Find(spelling);
    // An added token of that spelling stands for the character, as "À" does in DeepSeek-V2.
    const bool found =
        id && !special[static_cast<size_t>(*id)] &&
        file->token_bytes[static_cast<size_t>(*id)] == std::string(1, static_cast<char>(byte));
    if (!found && IsInUtf8(static_cast<uint8_t>(byte))) {
      return MakeError(
          "{}: field model.vocab lacks an ordinary token for byte 0x{:02x}, spelled {}", source,
          byte, Quote(spelling));
    }
    file->byte_ids[static_cast<size_t>(byte)] = found ? *id : -1;
  }
  return {};
}

Status ReadModel(const JsonFields& model, TokenizerFile* file) {
  const std::string& source = model.source();
  HB_RETURN_IF_ERROR(CheckModel(model));
  HB_ASSIGN_OR_RETURN(const auto ignore_merges, model.Bool("ignore_merges"));
  file->ignore_merges = ignore_merges.value_or(false);
  HB_ASSIGN_OR_RETURN(const auto vocab, model.Object("vocab"));
  HB_ASSIGN_OR_RETURN(const auto merges, model.Array("merges"));
  if (!vocab || !merges) {
    return MakeError("{} is missing", model.Describe(vocab ? "merges" : "vocab"));
  }
  Vocabulary vocabulary;
  HB_RETURN_IF_ERROR(vocabulary.Read(*vocab, file->added_tokens, source));
  std::vector<bool> special(vocabulary.spellings().size());
  for (const AddedToken& token : file->added_tokens) {
    special[static_cast<size_t>(token.id)] = token.special;
  }
  HB_RETURN_IF_ERROR(FillBytes(vocabulary, special, source, file));
  return ReadMerges(*merges, vocabulary, special, source, file);
}

Result<TokenizerFile> ReadTokenizerFile(dom::element root, const std::string& source) {
  HB_ASSIGN_OR_RETURN(
      const JsonFields top,
      JsonFields::Of(root, source, "",
                     {"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  TokenizerFile file;
  HB_RETURN_IF_ERROR(CheckTruncationAndPadding(top));
  HB_ASSIGN_OR_RETURN(file.form, ReadNormalizer(top));
  HB_ASSIGN_OR_RETURN(file.splits, ReadPreTokenizer(top));
  HB_ASSIGN_OR_RETURN(file.special_tokens, ReadPostProcessor(top));
  HB_RETURN_IF_ERROR(CheckDecoder(top));
  HB_ASSIGN_OR_RETURN(const auto added, top.Array("added_tokens"));
  if (added) {
    for (const dom::element token : *added) {
      HB_ASSIGN_OR_RETURN(
          AddedToken read,
          ReadAddedToken(token, source, fmt::format("added_tokens[{}]", file.added_tokens.size())));
      file.added_tokens.push_back(std::move(read));
    }
  }
  const auto model_field = top.Get("model");
  if (!model_field) return MakeError("{} is missing", top.Describe("model"));
  HB_ASSIGN_OR_RETURN(const JsonFields model,
                      JsonFields::Of(*model_field, source, "model",
                                     {"type", "dropout", "unk_token", "continuing_subword_prefix",
                                      "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                      "ignore_merges", "vocab", "merges"}));
  HB_RETURN_IF_ERROR(ReadModel(model, &file));
  for (const auto* ids : {&file.special_tokens.before, &file.special_tokens.after}) {
    for (const int32_t id : *ids) {
      if (static_cast<size_t>(id) < file.token_bytes.size()) continue;
      return MakeError("{}: field post_processor adds token id {}, but there are only {} tokens",
                       source, id, file.token_bytes.size());
    }
  }
  return file;
}

}  // namespace

Result<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view source) {
  dom::parser parser;
  if (parser.allocate(json.size(), kMaxNesting) != simdjson::SUCCESS) {
    return MakeError("{}: {} bytes are too many for a tokenizer", source, json.size());
  }
  dom::element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
    return MakeError("{}: not valid JSON: {}", source, simdjson::error_message(error));
  }
  return ReadTokenizerFile(root, std::string(source));
}

}  // namespace halfbyte
