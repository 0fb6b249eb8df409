// Any bytes as text for a tokenizer, as requests bring it: text -> tokens -> text is the identity,
// control tokens come out where they may and nowhere else. The bundled model's tokenizer, and one
// with the regexes of DeepSeek-V4 (tests/data/fuzz/tokenizer/v4.json).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace {

using halfbyte::ByteRange;
using halfbyte::ControlTokens;
using halfbyte::Tokenizer;

const Tokenizer& Load(const char* path) {
  auto loaded = Tokenizer::Load(std::filesystem::path(HALFBYTE_SOURCE_DIR) / path);
  HB_CHECK(loaded.has_value(), "{}", loaded.error().message);
  return *new Tokenizer(*std::move(loaded));
}

void CheckIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, std::string_view text) {
  const auto decoded = tokenizer.Decode(ids, /*skip_special=*/false);
  HB_CHECK(decoded && *decoded == text, "{} bytes became {}", text.size(),
           decoded ? decoded->size() : 0);
  std::string joined;
  for (const int32_t id : ids) joined += *tokenizer.TokenBytes(id);
  HB_CHECK(joined == text, "tokens one by one give another text");
}

void CheckText(const Tokenizer& tokenizer, std::string_view text, size_t cut) {
  for (const auto control : {ControlTokens::kAsText, ControlTokens::kRecognized}) {
    const auto ids = tokenizer.Encode(text, control);
    HB_CHECK(ids, "{}", ids.error().message);
    CheckIds(tokenizer, *ids, text);
  }
  // The part before the cut is ours.
  const std::vector<ByteRange> ours = {{0, cut}};
  const auto ids = tokenizer.Encode(text, ours);
  HB_CHECK(ids, "{}", ids.error().message);
  CheckIds(tokenizer, *ids, text);
  size_t at = 0;
  for (const int32_t id : *ids) {
    at += tokenizer.TokenBytes(id)->size();
    HB_CHECK(!tokenizer.IsSpecial(id) || at <= cut, "text became the special token {}", id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer& bundled = Load("models/tiny-v4-nvfp4/tokenizer.json");
  static const Tokenizer& v4 = Load("tests/data/fuzz/tokenizer/v4.json");
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t cut = std::min<size_t>(text.size(), data[0]);
  CheckText(bundled, text, cut);
  CheckText(v4, text, cut);
  return 0;
}
