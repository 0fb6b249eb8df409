// Reads tokenizer.json (Hugging Face "tokenizers" format) into plain data, and refuses by name what
// the tokenizer does not implement: a tokenizer that is slightly off spoils a model without a sign.
//
// Understood: model BPE with a vocabulary that spells bytes (byte_level.h), merges as "a b" or
// ["a", "b"], ignore_merges; added tokens without lstrip, rstrip and single_word; the other
// sections as tokenizer_steps.h says. Unknown fields are errors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/tokenizer_steps.h"
#include "text/unicode_form.h"

namespace halfbyte {

struct AddedToken {
  int32_t id;
  std::string content;  // 1..512 bytes, valid UTF-8
  bool special;
  bool normalized;  // looked for only in what the tokens that are not left over
};

struct TokenizerFile {
  // By id: the bytes each token stands for. An ordinary token that spells no bytes (some
  // vocabularies list control tokens, too) stands for its spelling; an id without token for none.
  std::vector<std::string> token_bytes;
  std::vector<bool> ordinary;         // by id: made of spelled bytes, and not an added token
  std::array<int32_t, 256> byte_ids;  // -1 where there is none, for bytes that UTF-8 never has
  std::vector<BpeMerge> merges;       // by rank
  std::vector<AddedToken> added_tokens;
  UnicodeForm form = UnicodeForm::kAsIs;
  std::vector<SplitRule> splits;
  SpecialTokens special_tokens;
  bool ignore_merges = false;  // a pretoken that is a token is taken whole
};

// `source` names the text in errors. Guarantees that no merge and no byte yields a special token,
// so that ordinary text cannot become one.
Result<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view source);

}  // namespace halfbyte
