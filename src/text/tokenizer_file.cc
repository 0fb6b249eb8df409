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

// The split that a ByteLevel pre-tokenizer with use_regex performs (GPT-2).
constexpr std::string_view kByteLevelRegex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// For messages: enough of a token or type name to find it by.
std::string Quote(std::string_view text) {
  // Cut between characters: error messages stay valid UTF-8.
  size_t end = std::min<size_t>(text.size(), 60);
  while (end < text.size() && end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("\"{}{}\"", text.substr(0, end), end < text.size() ? "..." : "");
}

// Refuses `key` unless it is absent, null or false (true with `neutral` true).
Status RequireBool(const JsonFields& fields, std::string_view key, bool neutral) {
  HB_ASSIGN_OR_RETURN(const auto value, fields.Bool(key));
  if (value.value_or(neutral) == neutral) return {};
  return MakeError("{} is {}, which is not supported", fields.Describe(key), *value);
}

Status RequireAbsent(const JsonFields& fields, std::string_view key) {
  if (!fields.Get(key)) return {};
  return MakeError("{} is set, which is not supported", fields.Describe(key));
}

Status RequireNoText(const JsonFields& fields, std::string_view key) {
  HB_ASSIGN_OR_RETURN(const auto value, fields.String(key));
  if (value.value_or("").empty()) return {};
  return MakeError("{} is {}, which is not supported", fields.Describe(key), Quote(*value));
}

// The "type" field of an object whose other fields are not yet known.
Result<std::string_view> TypeOf(dom::element value, std::string_view source,
                                std::string_view where) {
  std::string_view type;
  if (value["type"].get(type) != simdjson::SUCCESS) {
    return MakeError("{}: field {} must be an object with a \"type\"", source, where);
  }
  return type;
}

// Normalizer: none, which is also what an empty sequence says.
Status CheckNormalizer(dom::element value, const std::string& source) {
  HB_ASSIGN_OR_RETURN(const std::string_view type, TypeOf(value, source, "normalizer"));
  dom::array parts;
  if (type == "Sequence" && value["normalizers"].get(parts) == simdjson::SUCCESS &&
      parts.size() == 0) {
    return {};
  }
  return MakeError("{}: field normalizer: type {} is not supported, only null", source,
                   Quote(type));
}

// Post-processor and decoder of this type have options that change offsets only.
Status CheckByteLevel(dom::element value, std::string_view where, const std::string& source) {
  HB_ASSIGN_OR_RETURN(const std::string_view type, TypeOf(value, source, where));
  if (type == "ByteLevel") return {};
  return MakeError("{}: field {}: type {} is not supported, only ByteLevel", source, where,
                   Quote(type));
}

Result<SplitRule> ReadSplit(dom::element value, const std::string& source,
                            const std::string& where) {
  HB_ASSIGN_OR_RETURN(
      const JsonFields fields,
      JsonFields::Of(value, source, where, {"type", "pattern", "behavior", "invert"}));
  HB_ASSIGN_OR_RETURN(const auto behavior, fields.String("behavior"));
  if (behavior.value_or("") != "Isolated") {
    return MakeError("{} is {}; only \"Isolated\" is supported", fields.Describe("behavior"),
                     Quote(behavior.value_or("")));
  }
  HB_RETURN_IF_ERROR(fields.Bool("invert"));  // isolating matches or what lies between is the same
  const auto pattern = fields.Get("pattern");
  if (!pattern) return MakeError("{} is missing", fields.Describe("pattern"));
  HB_ASSIGN_OR_RETURN(
      const JsonFields kinds,
      JsonFields::Of(*pattern, source, fields.Path("pattern"), {"Regex", "String"}));
  HB_ASSIGN_OR_RETURN(const auto regex, kinds.String("Regex"));
  HB_ASSIGN_OR_RETURN(const auto literal, kinds.String("String"));
  const std::string text(regex ? *regex : literal.value_or(""));
  if ((regex && literal) || text.empty()) {
    return MakeError("{} must hold one non-empty \"Regex\" or \"String\"",
                     fields.Describe("pattern"));
  }
  return SplitRule{text, literal.has_value()};
}

Result<std::vector<SplitRule>> ReadPreTokenizer(dom::element value, const std::string& source) {
  HB_ASSIGN_OR_RETURN(const std::string_view top_type, TypeOf(value, source, "pre_tokenizer"));
  std::vector<std::pair<dom::element, std::string>> parts;
  if (top_type == "Sequence") {
    HB_ASSIGN_OR_RETURN(const JsonFields fields,
                        JsonFields::Of(value, source, "pre_tokenizer", {"type", "pretokenizers"}));
    HB_ASSIGN_OR_RETURN(const auto array, fields.Array("pretokenizers"));
    if (!array) return MakeError("{} is missing", fields.Describe("pretokenizers"));
    for (const dom::element part : *array) {
      parts.emplace_back(part, fmt::format("pre_tokenizer.pretokenizers[{}]", parts.size()));
    }
  } else {
    parts.emplace_back(value, "pre_tokenizer");
  }
  if (parts.size() > 64) {
    return MakeError("{}: field pre_tokenizer has {} steps; the limit is 64", source, parts.size());
  }
  std::vector<SplitRule> splits;
  bool byte_level = false;
  for (const auto& [part, where] : parts) {
    HB_ASSIGN_OR_RETURN(const std::string_view type, TypeOf(part, source, where));
    if (byte_level) {
      return MakeError("{}: field {}: nothing may follow ByteLevel", source, where);
    }
    if (type == "Split") {
      HB_ASSIGN_OR_RETURN(SplitRule split, ReadSplit(part, source, where));
      splits.push_back(std::move(split));
    } else if (type == "ByteLevel") {
      HB_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(part, source, where,
                                                                  {"type", "add_prefix_space",
                                                                   "trim_offsets", "use_regex"}));
      HB_RETURN_IF_ERROR(RequireBool(fields, "add_prefix_space", false));
      HB_ASSIGN_OR_RETURN(const auto use_regex, fields.Bool("use_regex"));
      if (use_regex.value_or(true)) splits.push_back({std::string(kByteLevelRegex), false});
      byte_level = true;
    } else {
      return MakeError("{}: field {}: type {} is not supported, only Split and ByteLevel", source,
                       where, Quote(type));
    }
  }
  if (!byte_level) {
    return MakeError("{}: field pre_tokenizer must end with ByteLevel", source);
  }
  return splits;
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
    const size_t most = vocab.size() + added.size();
    ids_.reserve(most);
    for (const auto& [spelling, value] : vocab) {
      int64_t id = -1;
      if (value.get(id) != simdjson::SUCCESS || id < 0 || static_cast<size_t>(id) >= most) {
        return MakeError("{}: field model.vocab: token {} has an id that is not in 0..{}", source,
                         Quote(spelling), most - 1);
      }
      HB_RETURN_IF_ERROR(Insert(spelling, static_cast<int32_t>(id), source));
    }
    for (const AddedToken& token : added) {
      const auto known = ids_.find(token.content);
      if (known == ids_.end()) {
        HB_RETURN_IF_ERROR(Insert(token.content, token.id, source));
      } else if (known->second != token.id) {
        return MakeError("{}: token {} has id {} in one place and {} in another", source,
                         Quote(token.content), known->second, token.id);
      }
    }
    return CheckNoHoles(source);
  }

  std::optional<int32_t> Find(std::string_view spelling) const {
    const auto it = ids_.find(spelling);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }

  const std::vector<std::string_view>& spellings() const { return spellings_; }

 private:
  Status Insert(std::string_view spelling, int32_t id, const std::string& source) {
    if (!ids_.emplace(spelling, id).second) {
      return MakeError("{}: token {} appears twice", source, Quote(spelling));
    }
    by_id_.emplace_back(id, spelling);
    return {};
  }

  // As many tokens as ids from 0 on, each once: then there is neither hole nor duplicate.
  Status CheckNoHoles(const std::string& source) {
    spellings_.resize(by_id_.size());
    std::vector<bool> used(by_id_.size());
    for (const auto& [id, spelling] : by_id_) {
      const auto index = static_cast<size_t>(id);
      if (index >= used.size()) {
        return MakeError("{}: token {} has id {}, but there are only {} tokens", source,
                         Quote(spelling), id, used.size());
      }
      if (used[index]) {
        return MakeError("{}: tokens {} and {} share id {}", source, Quote(spellings_[index]),
                         Quote(spelling), id);
      }
      used[index] = true;
      spellings_[index] = spelling;
    }
    by_id_.clear();
    return {};
  }

  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<std::pair<int32_t, std::string_view>> by_id_;  // while reading
  std::vector<std::string_view> spellings_;
};

Status CheckModel(const JsonFields& model) {
  HB_ASSIGN_OR_RETURN(const auto type, model.String("type"));
  if (type.value_or("") != "BPE") {
    return MakeError("{} is {}; only \"BPE\" is supported", model.Describe("type"),
                     Quote(type.value_or("")));
  }
  const auto dropout = model.Get("dropout");
  double chance = 0;
  if (dropout && (dropout->get(chance) != simdjson::SUCCESS || chance != 0)) {
    return MakeError("{} is set, which is not supported", model.Describe("dropout"));
  }
  HB_RETURN_IF_ERROR(RequireNoText(model, "continuing_subword_prefix"));
  HB_RETURN_IF_ERROR(RequireNoText(model, "end_of_word_suffix"));
  HB_RETURN_IF_ERROR(RequireBool(model, "byte_fallback", false));
  // Every byte has a token, so an unknown token never arises and these two ask nothing of us.
  HB_RETURN_IF_ERROR(model.String("unk_token"));
  HB_RETURN_IF_ERROR(model.Bool("fuse_unk"));
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
  for (const dom::element rule : rules) {
    const size_t rank = file->merges.size();
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
    if (special[static_cast<size_t>(ids[2])]) {
      return fail("would turn ordinary text into the special token", joined);
    }
    file->merges.push_back({ids[0], ids[1], ids[2]});
  }
  return {};
}

Status FillBytes(const Vocabulary& vocabulary, const std::vector<bool>& special,
                 const std::string& source, TokenizerFile* file) {
  const auto& spellings = vocabulary.spellings();
  file->ordinary.assign(spellings.size(), true);
  for (const AddedToken& token : file->added_tokens) {
    file->ordinary[static_cast<size_t>(token.id)] = false;
  }
  file->token_bytes.reserve(spellings.size());
  for (size_t id = 0; id < spellings.size(); ++id) {
    std::optional<std::string> bytes;
    if (file->ordinary[id]) bytes = UnspellBytes(spellings[id]);
    if (!bytes) file->ordinary[id] = false;
    file->token_bytes.push_back(bytes ? *std::move(bytes) : std::string(spellings[id]));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = SpellByte(static_cast<uint8_t>(byte));
    const auto id = vocabulary.Find(spelling);
    if (!id || special[static_cast<size_t>(*id)]) {
      return MakeError(
          "{}: field model.vocab lacks an ordinary token for byte 0x{:02x}, spelled {}", source,
          byte, Quote(spelling));
    }
    file->byte_ids[static_cast<size_t>(byte)] = *id;
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
  HB_RETURN_IF_ERROR(RequireAbsent(top, "truncation"));
  HB_RETURN_IF_ERROR(RequireAbsent(top, "padding"));
  if (const auto part = top.Get("normalizer")) HB_RETURN_IF_ERROR(CheckNormalizer(*part, source));
  if (const auto part = top.Get("post_processor")) {
    HB_RETURN_IF_ERROR(CheckByteLevel(*part, "post_processor", source));
  }
  for (const char* key : {"decoder", "pre_tokenizer", "model"}) {
    if (!top.Get(key)) return MakeError("{} is missing", top.Describe(key));
  }
  HB_RETURN_IF_ERROR(CheckByteLevel(*top.Get("decoder"), "decoder", source));

  TokenizerFile file;
  HB_ASSIGN_OR_RETURN(file.splits, ReadPreTokenizer(*top.Get("pre_tokenizer"), source));
  HB_ASSIGN_OR_RETURN(const auto added, top.Array("added_tokens"));
  if (added) {
    for (const dom::element token : *added) {
      HB_ASSIGN_OR_RETURN(
          AddedToken read,
          ReadAddedToken(token, source, fmt::format("added_tokens[{}]", file.added_tokens.size())));
      file.added_tokens.push_back(std::move(read));
    }
  }
  HB_ASSIGN_OR_RETURN(const JsonFields model,
                      JsonFields::Of(*top.Get("model"), source, "model",
                                     {"type", "dropout", "unk_token", "continuing_subword_prefix",
                                      "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                      "ignore_merges", "vocab", "merges"}));
  HB_RETURN_IF_ERROR(ReadModel(model, &file));
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
