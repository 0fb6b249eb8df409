// Reads tokenizer.json (Hugging Face "tokenizers" format) into plain data, and refuses by name what
// the tokenizer does not implement: a tokenizer that is slightly off spoils a model without a sign.
//
// Understood: model BPE with a vocabulary that spells bytes (byte_level.h), merges as "a b" or
// ["a", "b"], ignore_merges; added tokens without lstrip, rstrip and single_word; no normalizer; a
// pre-tokenizer made of isolated Splits and one closing ByteLevel without add_prefix_space;
// post-processor and decoder ByteLevel. Unknown fields are errors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"

namespace halfbyte {

struct AddedToken {
  int32_t id;
  std::string content;  // 1..512 bytes, valid UTF-8
  bool special;
  bool normalized;  // looked for only in what the tokens that are not left over
};

struct SplitRule {
  std::string pattern;
  bool literal;  // else a regex
};

struct TokenizerFile {
  // By id, without holes: the bytes each token stands for. An ordinary token that spells no bytes
  // (some vocabularies list control tokens, too) stands for its spelling.
  std::vector<std::string> token_bytes;
  std::vector<bool> ordinary;  // by id: made of spelled bytes, and not an added token
  std::array<int32_t, 256> byte_ids;
  std::vector<BpeMerge> merges;  // by rank
  std::vector<AddedToken> added_tokens;
  std::vector<SplitRule> splits;
  bool ignore_merges = false;  // a pretoken that is a token is taken whole
};

// `source` names the text in errors. Guarantees that no merge and no byte yields a special token,
// so that ordinary text cannot become one.
Result<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view source);

}  // namespace halfbyte
