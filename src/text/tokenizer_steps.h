// The sections of tokenizer.json around its model: what happens to a text before byte-pair encoding
// and to its ids afterwards. What has no effect is read; what has one is implemented where a
// tokenizer of DeepSeek, Qwen, GLM, Kimi, MiniMax, gpt-oss or Llama 3 uses it, and otherwise
// refused by its place in the file. A step may stand alone or in (nested) Sequences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/json_fields.h"
#include "text/unicode_form.h"

namespace halfbyte {

struct SplitRule {
  std::string pattern;
  bool literal = false;  // else a regex
  // Text between matches is an error. In the file such text is dropped ("Removed", inverted); no
  // pattern of a real tokenizer leaves any.
  bool covers_all = false;
};

// What stands around every text, as bos does.
struct SpecialTokens {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// Each reads one section of the file's top level, which may be absent unless said otherwise.

// NFC or NFKC.
Result<UnicodeForm> ReadNormalizer(const JsonFields& top);
// Splits (Isolated; Removed if inverted), Digits, and one closing ByteLevel without
// add_prefix_space. Must be there.
Result<std::vector<SplitRule>> ReadPreTokenizer(const JsonFields& top);
// ByteLevel, which changes offsets only, and at most one TemplateProcessing. Whether its ids exist
// is the caller's business.
Result<SpecialTokens> ReadPostProcessor(const JsonFields& top);
// ByteLevel. Must be there: without one the tokens of an answer would be joined by spaces.
Status CheckDecoder(const JsonFields& top);
// Both sections are only checked: in transformers they have no effect either, since every call says
// anew whether it truncates and pads. One warning if the file asks for it.
Status CheckTruncationAndPadding(const JsonFields& top);

// The end of sentences that refuse a tokenizer for what it needs.
inline constexpr std::string_view kEncodeElsewhere =
    "encode the text with the tokenizers library and give the token ids";

// For messages: enough of a token or type name to find it by.
std::string Quote(std::string_view text);
// Refuses `key` unless it is absent, null or `neutral`.
Status RequireBool(const JsonFields& fields, std::string_view key, bool neutral);

}  // namespace halfbyte
