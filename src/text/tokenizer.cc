#include "text/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace halfbyte {
struct Tokenizer::State {
  struct Scratch {
    RegexScratch regex;
    BpeScratch bpe;
  };

  // Working memory for as many encodings as ever ran at once.
  class ScratchPool {
   public:
    std::unique_ptr<Scratch> Take() {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) return std::make_unique<Scratch>();
      auto scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
    void Return(std::unique_ptr<Scratch> scratch) {
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(scratch));
    }

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Scratch>> free_;
  };

  std::string source;
  TokenizerFile file;
  std::vector<bool> special;    // by id
  AddedTokenFinder finders[2];  // not normalized, normalized
  std::unordered_map<std::string_view, int32_t> added_ids;
  std::unordered_map<std::string_view, int32_t> whole_words;  // for ignore_merges
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  mutable ScratchPool pool;

  Status EncodeText(std::string_view text, Scratch* scratch, std::vector<int32_t>* ids) const;
  Status EncodeValid(std::string_view text, Scratch* scratch, std::vector<int32_t>* ids) const;
};

namespace {

Result<PreTokenizer> CompileSplits(const TokenizerFile& file, std::string_view source) {
  std::vector<Regex> splits;
  for (const SplitRule& rule : file.splits) {
    auto regex = rule.literal ? Regex::Literal(rule.pattern) : Regex::Compile(rule.pattern);
    if (!regex) {
      return MakeError("{}: the pre-tokenizer's regex {} {}", source, splits.size() + 1,
                       regex.error().message);
    }
    splits.push_back(*std::move(regex));
  }
  return PreTokenizer(std::move(splits));
}

// `ranges` without the parts in `found`, which lie inside them in order.
std::vector<ByteRange> Without(std::span<const ByteRange> ranges,
                               std::span<const FoundToken> found) {
  std::vector<ByteRange> rest;
  size_t next = 0;
  for (ByteRange range : ranges) {
    for (; next < found.size() && found[next].range.end <= range.end; ++next) {
      rest.push_back({range.begin, found[next].range.begin});
      range.begin = found[next].range.end;
    }
    rest.push_back(range);
  }
  return rest;
}

std::vector<ByteRange> JoinAdjacent(std::span<const ByteRange> ranges, size_t size) {
  std::vector<ByteRange> joined;
  size_t done = 0;
  for (const ByteRange& range : ranges) {
    HB_CHECK(done <= range.begin && range.begin <= range.end && range.end <= size,
             "range {}..{} after {} in a text of {} bytes", range.begin, range.end, done, size);
    done = range.end;
    if (!joined.empty() && joined.back().end == range.begin) {
      joined.back().end = range.end;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::filesystem::path& path) {
  HB_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(path));
  return FromJson(json, path.string());
}

Result<Tokenizer> Tokenizer::FromJson(std::string_view json, std::string_view source) {
  auto state = std::make_unique<State>();
  state->source = source;
  HB_ASSIGN_OR_RETURN(state->file, ParseTokenizerFile(json, source));
  const TokenizerFile& file = state->file;
  HB_ASSIGN_OR_RETURN(state->pre_tokenizer, CompileSplits(file, source));

  BpeMergeTable merges;
  uint32_t duplicate = 0;
  if (!merges.Build(file.merges, &duplicate)) {
    return MakeError("{}: field model.merges[{}] repeats an earlier rule", source, duplicate);
  }
  state->bpe = Bpe(file.byte_ids, std::move(merges));

  state->special.resize(file.token_bytes.size());
  std::vector<std::pair<std::string_view, int32_t>> spellings[2];
  for (const AddedToken& token : file.added_tokens) {
    if (!state->added_ids.emplace(token.content, token.id).second) {
      return MakeError("{}: field added_tokens lists id {} twice", source, token.id);
    }
    state->special[static_cast<size_t>(token.id)] = token.special;
    spellings[token.normalized].emplace_back(token.content, token.id);
  }
  for (int i = 0; i < 2; ++i) state->finders[i] = AddedTokenFinder(std::move(spellings[i]));
  for (size_t id = 0; file.ignore_merges && id < file.token_bytes.size(); ++id) {
    if (file.ordinary[id]) {
      state->whole_words.emplace(file.token_bytes[id], static_cast<int32_t>(id));
    }
  }
  return Tokenizer(std::move(state));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, ControlTokens control) const {
  const ByteRange all = {0, text.size()};
  return Encode(text, control == ControlTokens::kRecognized ? std::span(&all, 1)
                                                            : std::span<const ByteRange>());
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               std::span<const ByteRange> ours) const {
  if (text.size() >= size_t{1} << 31) {
    return MakeError("text of {} bytes is too long to tokenize; the limit is 2 GiB", text.size());
  }
  // The reference looks for tokens that are not "normalized" first, then for the others in the
  // rest.
  std::vector<ByteRange> ranges = JoinAdjacent(ours, text.size());
  std::vector<FoundToken> found;
  for (const ByteRange& range : ranges) state_->finders[0].FindAll(text, range, &found);
  if (!state_->finders[1].empty()) {
    ranges = Without(ranges, found);
    for (const ByteRange& range : ranges) state_->finders[1].FindAll(text, range, &found);
    std::sort(found.begin(), found.end(), [](const FoundToken& a, const FoundToken& b) {
      return a.range.begin < b.range.begin;
    });
  }
  return EncodeAround(text, found);
}

Result<std::vector<int32_t>> Tokenizer::EncodeAround(std::string_view text,
                                                     std::span<const FoundToken> found) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + found.size());
  auto scratch = state_->pool.Take();
  size_t done = 0;
  Status status;
  for (const FoundToken& token : found) {
    status = state_->EncodeText(text.substr(done, token.range.begin - done), scratch.get(), &ids);
    if (!status) break;
    ids.push_back(token.id);
    done = token.range.end;
  }
  if (status) status = state_->EncodeText(text.substr(done), scratch.get(), &ids);
  state_->pool.Return(std::move(scratch));
  HB_RETURN_IF_ERROR(std::move(status));
  return ids;
}

Status Tokenizer::State::EncodeText(std::string_view text, Scratch* scratch,
                                    std::vector<int32_t>* ids) const {
  if (IsValidUtf8(text)) return EncodeValid(text, scratch, ids);
  while (!text.empty()) {
    size_t valid = 0;
    Utf8Step step = {Utf8Part::kCharacter, 0};
    while (valid < text.size()) {
      step = NextUtf8(text.substr(valid));
      if (step.part != Utf8Part::kCharacter) break;
      valid += step.length;
    }
    HB_RETURN_IF_ERROR(EncodeValid(text.substr(0, valid), scratch, ids));
    text.remove_prefix(valid);
    if (text.empty()) break;
    for (const char c : text.substr(0, step.length)) {
      ids->push_back(bpe.byte_id(static_cast<uint8_t>(c)));
    }
    text.remove_prefix(step.length);
  }
  return {};
}

Status Tokenizer::State::EncodeValid(std::string_view text, Scratch* scratch,
                                     std::vector<int32_t>* ids) const {
  auto status = pre_tokenizer.ForEachPiece(text, &scratch->regex, [&](std::string_view piece) {
    if (file.ignore_merges) {
      if (const auto whole = whole_words.find(piece); whole != whole_words.end()) {
        ids->push_back(whole->second);
        return;
      }
    }
    bpe.Encode(piece, &scratch->bpe, ids);
  });
  if (!status) return MakeError("{}: a pre-tokenizer regex {}", source, status.error().message);
  return {};
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  for (const int32_t id : ids) {
    HB_ASSIGN_OR_RETURN(const std::string_view bytes, TokenBytes(id));
    if (!skip_special || !IsSpecial(id)) text += bytes;
  }
  return text;
}

Result<std::string_view> Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    return MakeError("{}: token id {} is not in 0..{}", state_->source, id, vocab_size() - 1);
  }
  return std::string_view(state_->file.token_bytes[static_cast<size_t>(id)]);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->special[static_cast<size_t>(id)];
}

Result<int32_t> Tokenizer::IdOf(std::string_view added_token) const {
  const auto it = state_->added_ids.find(added_token);
  if (it == state_->added_ids.end()) {
    return MakeError("{}: there is no control token {}", state_->source, added_token);
  }
  return it->second;
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(state_->file.token_bytes.size());
}

const std::string& Tokenizer::source() const { return state_->source; }

}  // namespace halfbyte
