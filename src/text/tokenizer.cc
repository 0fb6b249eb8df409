#include "text/tokenizer.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/memory_plan.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/unicode_form.h"
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
      scratch->bpe.Trim();
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(scratch));
    }

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Scratch>> free_;
  };

  std::string source;
  TokenizerFile file;
  std::vector<bool> added;      // by id
  std::vector<bool> special;    // by id
  size_t longest = 1;           // bytes of the longest token
  AddedTokenFinder finders[2];  // not normalized, normalized
  std::unordered_map<std::string_view, int32_t> added_ids;
  std::unordered_map<std::string_view, int32_t> whole_words;  // for ignore_merges
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  mutable ScratchPool pool;

  // One encoding: its limits, and the ids so far.
  struct Work {
    const EncodeLimits& limits;
    std::vector<int32_t> ids;
    bool too_long = false;
  };

  // Each id stands for some of the bytes, in order, and for no more than the longest token has.
  int64_t LeastIds(size_t bytes) const {
    return static_cast<int64_t>((bytes + longest - 1) / longest);
  }
  // Error, which ends the encoding: so many bytes more make it too long, or it is told to stop.
  Status MayGoOn(size_t bytes, Work* work) const;
  // Text without added tokens of the first kind; control tokens may be where `ours` are.
  Status EncodeText(std::string_view text, std::span<const ByteRange> ours, Scratch* scratch,
                    Work* work) const;
  Status EncodeValid(std::string_view text, std::span<const ByteRange> ours, Scratch* scratch,
                     Work* work) const;
  Status EncodeOrdinary(std::string_view text, Scratch* scratch, Work* work) const;
};

namespace {

Result<PreTokenizer> CompileSplits(const TokenizerFile& file, std::string_view source) {
  std::vector<Split> splits;
  for (const SplitRule& rule : file.splits) {
    auto regex = rule.literal ? Regex::Literal(rule.pattern) : Regex::Compile(rule.pattern);
    if (!regex) {
      return MakeError("{}: the pre-tokenizer's regex {} {}", source, splits.size() + 1,
                       regex.error().message);
    }
    splits.push_back({*std::move(regex), rule.covers_all});
  }
  return PreTokenizer(std::move(splits));
}

// What lies of `ranges`, which are in order, in [begin, end), counted from `begin`. `next` is the
// first range that may; calls go up the text.
std::vector<ByteRange> RangesWithin(std::span<const ByteRange> ranges, size_t begin, size_t end,
                                    size_t* next) {
  std::vector<ByteRange> within;
  while (*next < ranges.size() && ranges[*next].end <= begin) ++*next;
  for (size_t i = *next; i < ranges.size() && ranges[i].begin < end; ++i) {
    within.push_back(
        {std::max(ranges[i].begin, begin) - begin, std::min(ranges[i].end, end) - begin});
  }
  return within;
}

// Calls between(begin, end) for what lies before, between and after the tokens, and token(id).
template <class Between, class Token>
Status ForEachBetween(std::span<const FoundToken> found, size_t size, const Between& between,
                      const Token& token) {
  size_t done = 0;
  for (const FoundToken& each : found) {
    HB_RETURN_IF_ERROR(between(done, each.range.begin));
    token(each.id);
    done = each.range.end;
  }
  return between(done, size);
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
  // While it is read: its text, the parsed JSON, the tables (deepseek's and llama's took 7).
  constexpr int64_t kBytesPerByte = 8;
  std::error_code unreadable;  // for ReadTextFile to report
  const auto size = std::filesystem::file_size(path, unreadable);
  MemoryPlan plan;
  plan.Add("tokenizer", unreadable ? 0 : kBytesPerByte * static_cast<int64_t>(size));
  HB_RETURN_IF_ERROR(plan.Check(ReadAvailableMemory(), path.string(), "more memory is needed"));
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
    const BpeMerge& merge = file.merges[duplicate];
    return MakeError("{}: field model.merges has two rules that join {} and {}", source,
                     Quote(file.token_bytes[static_cast<size_t>(merge.left)]),
                     Quote(file.token_bytes[static_cast<size_t>(merge.right)]));
  }
  state->bpe = Bpe(file.byte_ids, std::move(merges));

  for (const std::string& bytes : file.token_bytes) {
    state->longest = std::max(state->longest, bytes.size());
  }
  state->added.resize(file.token_bytes.size());
  state->special.resize(file.token_bytes.size());
  std::map<std::string, int32_t> spellings[2];
  for (const AddedToken& token : file.added_tokens) {
    state->added[static_cast<size_t>(token.id)] = true;
    state->special[static_cast<size_t>(token.id)] = token.special;
    state->added_ids.emplace(token.content, token.id);
    std::vector<ByteRange> none;
    HB_ASSIGN_OR_RETURN(const auto normal, ToForm(token.normalized ? file.form : UnicodeForm::kAsIs,
                                                  token.content, &none));
    if (!spellings[token.normalized].emplace(normal.value_or(token.content), token.id).second) {
      return MakeError("{}: field added_tokens: id {} is spelled as another one", source, token.id);
    }
  }
  for (int i = 0; i < 2; ++i) {
    state->finders[i] = AddedTokenFinder({spellings[i].begin(), spellings[i].end()});
  }
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
  HB_ASSIGN_OR_RETURN(auto ids, Encode(text, ours, EncodeLimits()));
  return std::move(ids).value();
}

Result<std::optional<std::vector<int32_t>>> Tokenizer::Encode(std::string_view text,
                                                              std::span<const ByteRange> ours,
                                                              const EncodeLimits& limits) const {
  // Normalizing may make a text shorter; then its pretokens tell.
  const bool as_is = state_->file.form == UnicodeForm::kAsIs;
  if (as_is && state_->LeastIds(text.size()) > limits.most_ids) return std::nullopt;
  if (text.size() >= size_t{1} << 31) {
    return MakeError("text of {} bytes is too long to tokenize; the limit is 2 GiB", text.size());
  }
  // The reference looks for tokens that are not "normalized" first, then, in what they leave and
  // after normalizing it, for the others.
  const std::vector<ByteRange> ranges = JoinAdjacent(ours, text.size());
  std::vector<FoundToken> found;
  for (const ByteRange& range : ranges) state_->finders[0].FindAll(text, range, &found);
  State::Work work{.limits = limits};
  const auto guess = static_cast<int64_t>(text.size() / 3 + found.size());
  work.ids.reserve(static_cast<size_t>(std::min(guess, limits.most_ids)));
  auto scratch = state_->pool.Take();
  scratch->bpe.SetStop(limits.stop);
  size_t next = 0;
  auto status = ForEachBetween(
      found, text.size(),
      [&](size_t begin, size_t end) {
        return state_->EncodeText(text.substr(begin, end - begin),
                                  RangesWithin(ranges, begin, end, &next), scratch.get(), &work);
      },
      [&](int32_t id) { work.ids.push_back(id); });
  state_->pool.Return(std::move(scratch));
  if (work.too_long || std::ssize(work.ids) > limits.most_ids) return std::nullopt;
  if (limits.stop.stop_requested()) return MakeError("the encoding was told to stop");
  HB_RETURN_IF_ERROR(std::move(status));
  return std::move(work.ids);
}

Result<std::vector<int32_t>> Tokenizer::EncodePrompt(std::string_view text,
                                                     bool add_special_tokens) const {
  HB_ASSIGN_OR_RETURN(auto ids, EncodePrompt(text, add_special_tokens, EncodeLimits()));
  return std::move(ids).value();
}

Result<std::optional<std::vector<int32_t>>> Tokenizer::EncodePrompt(
    std::string_view text, bool add_special_tokens, const EncodeLimits& limits) const {
  const ByteRange all = {0, text.size()};
  HB_ASSIGN_OR_RETURN(std::optional<std::vector<int32_t>> ids, Encode(text, {&all, 1}, limits));
  if (!ids || !add_special_tokens) return ids;
  const SpecialTokens& added = state_->file.special_tokens;
  ids->insert(ids->begin(), added.before.begin(), added.before.end());
  ids->insert(ids->end(), added.after.begin(), added.after.end());
  if (std::ssize(*ids) > limits.most_ids) return std::nullopt;
  return ids;
}

Status Tokenizer::State::MayGoOn(size_t bytes, Work* work) const {
  work->too_long = std::ssize(work->ids) + LeastIds(bytes) > work->limits.most_ids;
  if (work->too_long) return MakeError("the text is too long");
  if (work->limits.stop.stop_requested()) return MakeError("the encoding was told to stop");
  return {};
}

Status Tokenizer::State::EncodeText(std::string_view text, std::span<const ByteRange> ours,
                                    Scratch* scratch, Work* work) const {
  if (IsValidUtf8(text)) return EncodeValid(text, ours, scratch, work);
  size_t next = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    Utf8Step step = {Utf8Part::kCharacter, 0};
    while (end < text.size()) {
      step = NextUtf8(text.substr(end));
      if (step.part != Utf8Part::kCharacter) break;
      end += step.length;
    }
    HB_RETURN_IF_ERROR(EncodeValid(text.substr(begin, end - begin),
                                   RangesWithin(ours, begin, end, &next), scratch, work));
    if (end == text.size()) break;
    for (const char c : text.substr(end, step.length)) {
      work->ids.push_back(bpe.byte_id(static_cast<uint8_t>(c)));
      if (work->ids.back() < 0) {
        return MakeError("the text is not valid UTF-8, and {} has no token for its byte 0x{:02x}",
                         source, static_cast<uint8_t>(c));
      }
    }
    begin = end + step.length;
  }
  return {};
}

Status Tokenizer::State::EncodeValid(std::string_view text, std::span<const ByteRange> ours,
                                     Scratch* scratch, Work* work) const {
  std::vector<ByteRange> ranges(ours.begin(), ours.end());
  HB_ASSIGN_OR_RETURN(const auto normal, ToForm(file.form, text, &ranges));
  if (normal) text = *normal;
  std::vector<FoundToken> found;
  for (const ByteRange& range : ranges) finders[1].FindAll(text, range, &found);
  return ForEachBetween(
      found, text.size(),
      [&](size_t begin, size_t end) {
        return EncodeOrdinary(text.substr(begin, end - begin), scratch, work);
      },
      [&](int32_t id) { work->ids.push_back(id); });
}

Status Tokenizer::State::EncodeOrdinary(std::string_view text, Scratch* scratch, Work* work) const {
  auto status =
      pre_tokenizer.ForEachPiece(text, &scratch->regex, [&](std::string_view piece) -> Status {
        HB_RETURN_IF_ERROR(MayGoOn(piece.size(), work));
        if (file.ignore_merges) {
          if (const auto whole = whole_words.find(piece); whole != whole_words.end()) {
            work->ids.push_back(whole->second);
            return {};
          }
        }
        bpe.Encode(piece, &scratch->bpe, &work->ids);
        return {};
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

bool Tokenizer::IsAdded(int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->added[static_cast<size_t>(id)];
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
