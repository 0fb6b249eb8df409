// For tests only: the tokenizer of the bundled model.
#pragma once

#include <string>

#include "base/check.h"
#include "text/tokenizer.h"

namespace halfbyte {

inline const Tokenizer& TestTokenizer() {
  static const auto tokenizer =
      Tokenizer::Load(std::string(HALFBYTE_SOURCE_DIR) + "/models/tiny-v4-nvfp4/tokenizer.json");
  HB_CHECK(tokenizer, "{}", tokenizer.error().message);
  return *tokenizer;
}

}  // namespace halfbyte
