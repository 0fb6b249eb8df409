#include "text/model_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"

namespace halfbyte {
namespace {

Result<ModelDefaults> Parse(const char* json) {
  return ParseModelDefaults(*ParseJson(json, "halfbyte.json"), "halfbyte.json");
}

TEST(ModelDefaults, ThinkingIsOnAndEffortHighUnlessTheFileSaysOtherwise) {
  const ModelDefaults empty = *Parse("{}");
  EXPECT_TRUE(empty.thinking);
  EXPECT_EQ(empty.reasoning_effort, ReasoningEffort::kHigh);
  const ModelDefaults set = *Parse(
      R"({"default_thinking": false, "default_reasoning_effort": "max", 
          "effort_profile": "official", "effort_texts": {"high": "h", "max": "m"}})");
  EXPECT_FALSE(set.thinking);
  EXPECT_EQ(set.reasoning_effort, ReasoningEffort::kMax);
  EXPECT_EQ(*set.wording.efforts.For(ReasoningEffort::kHigh), "h");
  EXPECT_EQ(*set.wording.efforts.For(ReasoningEffort::kMax), "m");
  EXPECT_EQ(*set.wording.efforts.For(ReasoningEffort::kLow), "");
}

TEST(ModelDefaults, NamesWhatIsWrong) {
  const struct {
    const char* json;
    const char* named;
  } cases[] = {
      {"[]", "top level"},
      {R"({"default_thinkin": false})", "default_thinkin"},
      {R"({"default_thinking": "no"})", "default_thinking"},
      {R"({"default_reasoning_effort": "extreme"})", "\"extreme\""},
      {R"({"default_reasoning_effort": 3})", "default_reasoning_effort"},
      {R"({"effort_profile": "beta"})", "\"beta\""},
      {R"({"effort_texts": "x"})", "effort_texts"},
      {R"({"effort_texts": {"medium": "x"}})", "effort_texts.medium"},
      {R"({"effort_texts": {"high": "x"}})", "effort_texts.high"},  // unused in the preview profile
      {R"({"effort_texts": {"max": 1}})", "effort_texts.max"},
  };
  for (const auto& test : cases) {
    const auto result = Parse(test.json);
    ASSERT_FALSE(result) << test.json;
    EXPECT_EQ(result.error().message.rfind("halfbyte.json: ", 0), 0u) << result.error().message;
    EXPECT_NE(result.error().message.find(test.named), std::string::npos) << result.error().message;
  }
}

TEST(ModelDefaults, ComeFromTheModelDirectory) {
  const std::filesystem::path dir = testing::TempDir() + "/halfbyte_model_defaults";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  EXPECT_TRUE(ReadModelDefaults(dir)->thinking);
  ASSERT_TRUE(WriteFileAtomically(dir / "halfbyte.json", R"({"default_thinking": false})"));
  EXPECT_FALSE(ReadModelDefaults(dir)->thinking);
  ASSERT_TRUE(WriteFileAtomically(dir / "halfbyte.json", "{"));
  const auto broken = ReadModelDefaults(dir);
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find((dir / "halfbyte.json").string()), std::string::npos);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace halfbyte
