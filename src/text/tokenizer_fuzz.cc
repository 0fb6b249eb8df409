// Any bytes as tokenizer.json: an error or a tokenizer that works, never a crash, hang or lost
// text. Seeds: tests/data/fuzz/tokenizer.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using halfbyte::ControlTokens;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = halfbyte::Tokenizer::FromJson(json, "tokenizer.json");
  if (!tokenizer) return 0;
  static const std::string text =
      "Hello, world! 12345 x\n\n  \u4f60\u597d\u3002 caf\u00e9 </think> "
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \U0001F642\u200d <\xff\xf0\x9f> \t\r\n ababab";
  for (const auto control : {ControlTokens::kAsText, ControlTokens::kRecognized}) {
    const auto ids = tokenizer->Encode(text, control);
    if (!ids) continue;  // a regex gave up
    const auto decoded = tokenizer->Decode(*ids, false);
    HB_CHECK(decoded && *decoded == text, "decoded {} bytes", decoded ? decoded->size() : 0);
    for (const int32_t id : *ids) {
      HB_CHECK(control == ControlTokens::kRecognized || !tokenizer->IsSpecial(id),
               "text became the special token {}", id);
    }
  }
  return 0;
}
