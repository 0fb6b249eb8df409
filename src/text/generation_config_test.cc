// What requests get by default, and token ids, from files.
#include "text/generation_config.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "text/token_ids.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

class TextFiles : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) /
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  fs::path Write(const char* name, const std::string& content) {
    EXPECT_TRUE(WriteFileAtomically(directory_ / name, content));
    return directory_ / name;
  }
  fs::path directory_;
};

TEST_F(TextFiles, TokenIdsAreAListOrAListOfLists) {
  EXPECT_EQ(*ReadTokenIds(Write("a", "[1, 2, 3]")), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(ReadTokenSequences(Write("a", "[[1], [2, 3]]"))->size(), 2u);
  for (const char* bad : {"[]", "[[]]", "{}", "[1, \"2\"]", "[1.5]", "[99999999999]", "[1, [2]]",
                          "[[1], 2]", "nonsense", "[[1], [2]]"}) {
    const auto result = ReadTokenIds(Write("bad.json", bad));
    ASSERT_FALSE(result) << bad;
    EXPECT_NE(result.error().message.find("bad.json"), std::string::npos) << bad;
  }
}

TEST_F(TextFiles, DefaultsOfRequestsComeFromGenerationConfig) {
  EXPECT_EQ(ReadGenerationDefaults(directory_)->sampling.temperature, 1.0);
  EXPECT_EQ(ReadGenerationDefaults(directory_)->MaxTokens(10, 16), 16);
  Write("generation_config.json", R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20,
      "repetition_penalty": 1.3, "presence_penalty": 1.5, "max_new_tokens": 100, "max_length": 50,
      "min_new_tokens": 2, "stop_strings": ["END", "\n\n"], "suppress_tokens": [5, 7],
      "bad_words_ids": [[9], [3, 4]]})");
  const GenerationDefaults defaults = *ReadGenerationDefaults(directory_);
  EXPECT_EQ(defaults.sampling.temperature, 0.6);
  EXPECT_EQ(defaults.sampling.top_p, 0.95);
  EXPECT_EQ(defaults.sampling.top_k, 20);
  EXPECT_EQ(defaults.sampling.repetition_penalty, 1.3);
  EXPECT_EQ(defaults.sampling.presence_penalty, 1.5);
  EXPECT_EQ(defaults.MaxTokens(10, 16), 100);
  EXPECT_EQ(defaults.min_new_tokens, 2);
  EXPECT_EQ(defaults.stop_strings, (std::vector<std::string>{"END", "\n\n"}));
  EXPECT_EQ(defaults.suppress_tokens, (std::vector<int32_t>{5, 7, 9}));
  Write("generation_config.json", R"({"temperature": 0.6, "do_sample": false, "max_length": 50,
      "stop_strings": "END"})");
  EXPECT_EQ(ReadGenerationDefaults(directory_)->sampling.temperature, 0.0);
  EXPECT_EQ(ReadGenerationDefaults(directory_)->MaxTokens(10, 16), 40);
  EXPECT_EQ(ReadGenerationDefaults(directory_)->MaxTokens(60, 16), 1);
  EXPECT_EQ(ReadGenerationDefaults(directory_)->stop_strings, std::vector<std::string>{"END"});
}

TEST_F(TextFiles, GenerationConfigIsRefusedByField) {
  for (const char* bad :
       {R"({"temperature": 9})", R"({"top_p": "high"})", R"({"repetition_penalty": 0})",
        R"({"repetition_penalty": "1.1"})", R"({"max_new_tokens": 0})",
        R"({"max_new_tokens": 1.5})", R"({"max_length": "long"})", R"({"min_new_tokens": -1})",
        R"({"stop_strings": 5})", R"({"stop_strings": [""]})", R"({"stop_strings": [1]})",
        R"({"suppress_tokens": 5})", R"({"suppress_tokens": [-1]})",
        R"({"suppress_tokens": ["a"]})", R"({"bad_words_ids": [5]})", R"({"bad_words_ids": [[]]})",
        R"({"do_sample": "no"})"}) {
    const std::string text = bad;
    Write("generation_config.json", text);
    const auto result = ReadGenerationDefaults(directory_);
    ASSERT_FALSE(result) << text;
    const std::string field = text.substr(2, text.find('"', 2) - 2);
    EXPECT_NE(result.error().message.find("generation_config.json: "), std::string::npos);
    EXPECT_NE(result.error().message.find(field), std::string::npos) << result.error().message;
  }
}

// What is logged while `json` is read.
std::string Warned(const char* json) {
  std::ostringstream out;
  auto logger = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out));
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(logger);
  EXPECT_TRUE(WithGenerationDefaults({}, *ParseJson(json, "g.json"), "g.json"));
  spdlog::set_default_logger(before);
  return out.str();
}

TEST(GenerationConfig, NamesInOneWarningWhatItDoesNotUse) {
  EXPECT_EQ(Warned(R"({"transformers_version": "5.24.0", "_from_model_config": true,
      "do_sample": true, "num_beams": 1, "typical_p": 1, "early_stopping": true, "use_cache": false,
      "no_repeat_ngram_size": 0, "begin_suppress_tokens": [], "pad_token_id": 1, "top_h": null,
      "temperature": 0.6, "bad_words_ids": [[5]]})"),
            "");
  const std::string warning = Warned(R"({"num_beams": 4, "temperature": 0.6, "typical_p": 0.9,
      "begin_suppress_tokens": [5], "bad_words_ids": [[5, 6]], "a_new_field": 1,
      "penalty_alpha": NaN})");
  for (const char* name : {"g.json: ", "num_beams, ", "typical_p, ", "begin_suppress_tokens, ",
                           "a_new_field, ", "penalty_alpha, ", "bad_words_ids of several tokens"}) {
    EXPECT_NE(warning.find(name), std::string::npos) << warning;
  }
  EXPECT_EQ(warning.find("temperature"), std::string::npos);
  EXPECT_EQ(std::ranges::count(warning, '\n'), 1);
}

}  // namespace
}  // namespace halfbyte
