#include "text/encoder_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "text/model_defaults.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

constexpr char kPreview[] =
    "import copy\n\nREASONING_EFFORT_MAX = (\n    \"Dig.\\n\"\n    \"Deep.\"\n)\n";
constexpr char kOfficial[] =
    "REASONING_EFFORT_PROMPTS: Dict[str, str] = {\n"
    "    \"low\": \"\",\n    \"high\": (\n        \"Dig.\\n\"\n        \"Deep.\"\n    ),\n"
    "    \"max\": \"Deeper.\",\n}\nDEFAULT_REASONING_EFFORT = \"low\"\n";

class EncoderFile : public testing::Test {
 protected:
  EncoderFile() {
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "encoding");
  }
  ~EncoderFile() override { fs::remove_all(dir_); }

  void Write(const char* file, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(dir_ / file, text));
  }
  EffortTexts Texts() {
    const auto defaults = ReadModelDefaults(dir_);
    EXPECT_TRUE(defaults) << defaults.error().message;
    return defaults.value_or(ModelDefaults()).wording.efforts;
  }
  std::string ErrorOfReading() {
    const auto defaults = ReadModelDefaults(dir_);
    return defaults ? "" : defaults.error().message;
  }

  const fs::path dir_ = fs::path(testing::TempDir()) / "halfbyte_encoder_file";
};

TEST_F(EncoderFile, OneTextForMaxIsThePreview) {
  Write("encoding/encoding_dsv4.py", kPreview);
  const EffortTexts texts = Texts();
  EXPECT_EQ(texts.profile, EffortProfile::kPreview);
  EXPECT_EQ(*texts.For(ReasoningEffort::kHigh), "");
  EXPECT_EQ(*texts.For(ReasoningEffort::kMax), "Dig.\nDeep.");
  EXPECT_EQ(texts.source, (dir_ / "encoding/encoding_dsv4.py").string());
  EXPECT_EQ(texts.sha256, "2418750ac86890f8733b5612881111675abaed654f74e8602549c5d704553314");
}

TEST_F(EncoderFile, ATableOfThreeIsTheOfficialProfile) {
  Write("encoding/encoding_dsv4.py", kOfficial);
  const EffortTexts texts = Texts();
  EXPECT_EQ(texts.profile, EffortProfile::kOfficial);
  EXPECT_EQ(*texts.For(ReasoningEffort::kLow), "");
  EXPECT_EQ(*texts.For(ReasoningEffort::kHigh), "Dig.\nDeep.");
  EXPECT_EQ(*texts.For(ReasoningEffort::kMax), "Deeper.");
}

TEST_F(EncoderFile, HalfbyteJsonCountsMore) {
  Write("encoding/encoding_dsv4.py", kPreview);
  Write("halfbyte.json", R"({"default_thinking": false})");
  EXPECT_EQ(*Texts().For(ReasoningEffort::kMax), "Dig.\nDeep.");
  EXPECT_FALSE(ReadModelDefaults(dir_)->thinking);
  Write("halfbyte.json", R"({"effort_texts": {"max": "Mine."}})");
  EXPECT_EQ(*Texts().For(ReasoningEffort::kMax), "Mine.");
  EXPECT_EQ(Texts().source, (dir_ / "halfbyte.json").string());
  Write("encoding/encoding_dsv4.py", "'");  // is not even read
  EXPECT_EQ(*Texts().For(ReasoningEffort::kMax), "Mine.");
}

// server.md §3.2: a wrong profile is one level off, and nothing fails.
TEST_F(EncoderFile, AnotherProfileMovesTheTextsByALevel) {
  Write("encoding/encoding_dsv4.py", kOfficial);
  Write("halfbyte.json", R"({"effort_profile": "preview"})");
  EXPECT_EQ(*Texts().For(ReasoningEffort::kHigh), "");
  EXPECT_EQ(*Texts().For(ReasoningEffort::kMax), "Dig.\nDeep.");
  Write("encoding/encoding_dsv4.py", kPreview);
  Write("halfbyte.json", R"({"effort_profile": "official"})");
  EXPECT_EQ(*Texts().For(ReasoningEffort::kHigh), "Dig.\nDeep.");
  const auto max = Texts().For(ReasoningEffort::kMax);
  ASSERT_FALSE(max);
  EXPECT_EQ(max.error().message.rfind("prompt_data_missing: ", 0), 0u);
}

TEST_F(EncoderFile, WithoutWordingOnlyWhatNeedsItFails) {
  EXPECT_EQ(Texts().source, "");
  Write("encoding/encoding_dsv4.py", "REASONING_EFFORT_MAX = text()\n");
  EXPECT_EQ(*Texts().For(ReasoningEffort::kHigh), "");
  EXPECT_FALSE(Texts().For(ReasoningEffort::kMax));
  EXPECT_NE(Texts().source, "");
}

TEST_F(EncoderFile, NamesWhatCannotBeUsed) {
  const std::pair<std::string, const char*> cases[] = {
      {"x = 'y\n", "encoding_dsv4.py: line 1: a string does not end"},
      {"REASONING_EFFORT_PROMPTS = {'high': 'a', 'max': 'b'}\n", "halfbyte.json"},
      {"REASONING_EFFORT_PROMPTS = {'low': 'a', 'high': 'a', 'max': 'b'}\n", "low (empty)"},
      {std::string((1 << 20) + 1, '\n'), "encoding_dsv4.py"},
  };
  for (const auto& [text, named] : cases) {
    Write("encoding/encoding_dsv4.py", text);
    EXPECT_NE(ErrorOfReading().find(named), std::string::npos) << ErrorOfReading();
  }
}

}  // namespace
}  // namespace halfbyte
