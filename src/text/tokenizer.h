// Byte-level BPE tokenizer read from tokenizer.json (tokenizer_file.h says what it understands).
//
//   HB_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(dir / "tokenizer.json"));
//   HB_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode("Hello", ControlTokens::kAsText));
//
// Text may be any bytes. Decode(Encode(text)) == text, byte for byte (or the Unicode form of it
// that the file asks for): what is not valid UTF-8 becomes one single-byte token per byte, and cuts
// the text around it into separate pretokens. Thread-safe; an Encode borrows working memory (about
// 1 MiB) that stays for the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_token_finder.h"

namespace halfbyte {

// Whether text that spells an added token ("<｜User｜>", "</think>") becomes that token.
enum class ControlTokens {
  kAsText,      // no: ordinary tokens that spell it. For text of users
  kRecognized,  // yes, everywhere: what the reference library does
};

// What bounds the work of an encoding.
struct EncodeLimits {
  int64_t most_ids = std::numeric_limits<int64_t>::max();
  std::stop_token stop;  // asked for: the encoding ends soon, with an error
};

class Tokenizer {
 public:
  static Result<Tokenizer> Load(const std::filesystem::path& path);
  // `source` names the text in errors.
  static Result<Tokenizer> FromJson(std::string_view json, std::string_view source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Errors: text of 2 GiB or more; a regex of the file gives up on the text, or leaves some of it
  // where it must not (SplitRule); a byte that UTF-8 never has, where the vocabulary lacks it, too.
  Result<std::vector<int32_t>> Encode(std::string_view text, ControlTokens control) const;

  // Control tokens are recognised only where they lie wholly inside `ours`: ranges of `text`, in
  // order and disjoint; adjacent ones count as one (server.md §3.3). Pretokens ignore the borders
  // of the ranges, so that all else equals the reference.
  Result<std::vector<int32_t>> Encode(std::string_view text, std::span<const ByteRange> ours) const;

  // The same within limits. None: the text has more ids than these allow. That costs nothing to
  // find where not even the longest tokens could spell so many bytes, and never more than the
  // allowed ids and one pretoken.
  Result<std::optional<std::vector<int32_t>>> Encode(std::string_view text,
                                                     std::span<const ByteRange> ours,
                                                     const EncodeLimits& limits) const;

  // A text as the reference library encodes it: control tokens recognised, and the tokens around it
  // that the file's post_processor adds (bos, mostly), unless `add_special_tokens` is off.
  Result<std::vector<int32_t>> EncodePrompt(std::string_view text, bool add_special_tokens) const;
  Result<std::optional<std::vector<int32_t>>> EncodePrompt(std::string_view text,
                                                           bool add_special_tokens,
                                                           const EncodeLimits& limits) const;

  // The bytes of the tokens in a row. With skip_special, special tokens give none.
  // Error: an id outside the vocabulary.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special) const;

  // The bytes of one token; a control token gives its spelling. Valid as long as the tokenizer.
  Result<std::string_view> TokenBytes(int32_t id) const;
  // Marked "special" in the file. Ids outside the vocabulary are not.
  bool IsSpecial(int32_t id) const;
  // One of the file's added tokens, special or not: no text of users becomes it.
  bool IsAdded(int32_t id) const;
  // The id of an added token by its spelling. Error naming file and token if there is none.
  Result<int32_t> IdOf(std::string_view added_token) const;

  // Ids are 0 .. vocab_size() - 1; one that the file leaves out stands for no bytes. A model may
  // have more rows than this.
  int32_t vocab_size() const;
  const std::string& source() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace halfbyte
