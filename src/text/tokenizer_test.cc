#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/json.h"
#include "text/utf8_stream.h"

namespace halfbyte {
namespace {

const std::filesystem::path kRoot = HALFBYTE_SOURCE_DIR;

const Tokenizer& Tiny() {
  static const Tokenizer tokenizer = [] {
    auto loaded = Tokenizer::Load(kRoot / "models/tiny-v4-nvfp4/tokenizer.json");
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return *std::move(loaded);
  }();
  return tokenizer;
}

TEST(Tokenizer, AgreesWithTheReferenceLibraryOnTheGoldenCases) {
  const auto cases = ReadJsonFile(kRoot / "tests/data/tokenizer/cases.json");
  ASSERT_TRUE(cases) << cases.error().message;
  ASSERT_EQ(cases->size(), 31u);
  for (const Json& test : *cases) {
    const auto text = test["text"].get<std::string>();
    const auto ids = test["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(*Tiny().Encode(text, ControlTokens::kRecognized), ids) << text;
    EXPECT_EQ(ToValidUtf8(*Tiny().Decode(ids, false)), test["decoded"].get<std::string>());
  }
}

}  // namespace
}  // namespace halfbyte
