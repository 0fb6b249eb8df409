// The generation loop, perplexity and the small file readers, on a golden model of 128 ids.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "engine/generation_config.h"
#include "engine/generator.h"
#include "engine/perplexity.h"
#include "engine/prompt_logits.h"
#include "engine/token_ids.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

class Engine : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path directory = fs::path(HALFBYTE_SOURCE_DIR) / "tests/data/goldens/mixed";
    auto loaded = Transformer::Load(directory, {.batch_tokens = 16}, Context(pool_));
    ASSERT_TRUE(loaded) << loaded.error().message;
    model_ = std::move(*loaded);
  }

  // The row of logits after the last of `tokens`.
  std::vector<float> LogitsAfter(const std::vector<int32_t>& tokens) {
    std::vector<float> last;
    const Status status =
        ForEachLogits(*model_, tokens, {}, [&](int64_t, MatrixView<const float> logits) -> Status {
          last.assign(logits.row(logits.rows - 1), logits.row(logits.rows));
          return {};
        });
    EXPECT_TRUE(status);
    return last;
  }

  ThreadPool pool_{2};
  std::unique_ptr<Transformer> model_;
  const std::vector<int32_t> prompt_ = {5, 17, 99, 3, 64, 64, 2,  90, 31, 8,
                                        7, 77, 12, 1, 45, 33, 80, 21, 6,  118};
};

TEST_F(Engine, GreedyGenerationTakesTheBestTokenOfTheWholePrefixEachTime) {
  const GenerateRequest request{
      .prompt = prompt_, .max_tokens = 12, .sampling = {.temperature = 0}};
  std::vector<int32_t> streamed;
  const auto result = Generate(*model_, request, [&](int32_t token) {
    streamed.push_back(token);
    return true;
  });
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->tokens, streamed);
  EXPECT_EQ(result->finish, FinishReason::kLength);
  ASSERT_EQ(result->tokens.size(), 12u);
  std::vector<int32_t> prefix = prompt_;
  for (const int32_t token : result->tokens) {
    const std::vector<float> logits = LogitsAfter(prefix);
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    prefix.push_back(token);
  }
}

TEST_F(Engine, ASeedRepeatsAndAStopIdEnds) {
  GenerateRequest request{.prompt = prompt_, .max_tokens = 20, .sampling = {.seed = 7}};
  const auto ignore = [](int32_t) { return true; };
  const auto first = *Generate(*model_, request, ignore);
  EXPECT_EQ(Generate(*model_, request, ignore)->tokens, first.tokens);
  request.sampling.seed = 8;
  EXPECT_NE(Generate(*model_, request, ignore)->tokens, first.tokens);

  request.sampling.seed = 7;
  request.stop_ids = {first.tokens[5]};
  const auto stopped = *Generate(*model_, request, ignore);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  const auto end = std::find(first.tokens.begin(), first.tokens.end(), first.tokens[5]) + 1;
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(first.tokens.begin(), end));
  request.min_tokens = end - first.tokens.begin() + 1;
  EXPECT_GE(std::ssize(Generate(*model_, request, ignore)->tokens), request.min_tokens);
}

TEST_F(Engine, TheCallerEndsATextAndMaskedTokensNeverCome) {
  GenerateRequest request{.prompt = prompt_, .max_tokens = 9, .sampling = {.temperature = 0}};
  int64_t seen = 0;
  const auto three = *Generate(*model_, request, [&](int32_t) { return ++seen < 3; });
  EXPECT_EQ(three.tokens.size(), 3u);
  EXPECT_EQ(three.finish, FinishReason::kStop);
  request.masked_ids = {three.tokens[0]};
  const auto without = *Generate(*model_, request, [](int32_t) { return true; });
  EXPECT_EQ(std::ranges::count(without.tokens, three.tokens[0]), 0);
}

TEST_F(Engine, ARepetitionPenaltyKeepsTokensFromComingAgain) {
  GenerateRequest request{.prompt = prompt_, .max_tokens = 40, .sampling = {.temperature = 0}};
  const auto distinct = [&] {
    const auto tokens = Generate(*model_, request, [](int32_t) { return true; })->tokens;
    return std::set<int32_t>(tokens.begin(), tokens.end()).size();
  };
  const size_t freely = distinct();
  request.sampling.repetition_penalty = 10;
  EXPECT_GT(distinct(), freely);
}

TEST_F(Engine, LengthsAreCheckedBeforeWork) {
  const int64_t context = model_->config().max_position_embeddings;
  const auto message = [&](int64_t prompt_tokens, std::optional<int64_t> max_tokens) {
    const GenerateRequest request{
        .prompt = std::vector<int32_t>(static_cast<size_t>(prompt_tokens), 3),
        .max_tokens = max_tokens};
    const auto result = Generate(*model_, request, [](int32_t) { return true; });
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_EQ(message(0, 1), "the prompt is empty: it needs at least one token");
  EXPECT_NE(message(context, 1).find("leaves no room"), std::string::npos);
  EXPECT_NE(message(10, context).find("do not fit"), std::string::npos);
  EXPECT_NE(message(10, 0).find("at least 1"), std::string::npos);
  EXPECT_NE(message(10, -5).find("at least 1"), std::string::npos);
  EXPECT_EQ(message(10, 1), "accepted");
  EXPECT_EQ(message(context - 1, 2), "accepted");
}

TEST_F(Engine, PerplexityIsTheMeanOfTheLogLikelihoods) {
  std::vector<std::vector<int32_t>> sequences = {prompt_, {4, 9, 9}, {1}};
  double expected = 0;
  int64_t count = 0;
  for (const auto& sequence : sequences) {
    for (size_t i = 1; i < sequence.size(); ++i) {
      const auto end = sequence.begin() + static_cast<int64_t>(i);
      const std::vector<float> logits = LogitsAfter({sequence.begin(), end});
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      expected += std::log(sum) - logits[static_cast<size_t>(sequence[i])];
      ++count;
    }
  }
  int64_t progress = 0;
  const auto result =
      MeasurePerplexity(*model_, sequences, [&](int64_t tokens) { progress += tokens; });
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->tokens, count);
  EXPECT_NEAR(result->nll, expected / static_cast<double>(count), 1e-9);
  EXPECT_EQ(progress, std::ssize(prompt_) + 3);
  sequences = {{1}};
  EXPECT_FALSE(MeasurePerplexity(*model_, sequences, [](int64_t) {}));
}

// Copies the model and writes `bytes` over the beginning of one tensor.
void WriteDamagedCopy(const fs::path& source, const fs::path& copy, const std::string& tensor,
                      std::string_view bytes) {
  fs::remove_all(copy);
  fs::copy(source, copy);
  for (const auto& entry : fs::directory_iterator(copy)) {
    if (entry.path().filename() == "golden.safetensors") continue;
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file = *SafetensorsFile::Open(entry.path());
    for (const TensorInfo& info : file.tensors()) {
      if (info.name != tensor) continue;
      std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary)
          .seekp(info.offset)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      return;
    }
  }
  FAIL() << "no tensor " << tensor;
}

TEST_F(Engine, LogitsThatAreNotFiniteAreAnErrorThatNamesTheToken) {
  const fs::path source = fs::path(HALFBYTE_SOURCE_DIR) / "tests/data/goldens/mixed";
  const fs::path copy = fs::path(testing::TempDir()) / "halfbyte_nan_model";
  WriteDamagedCopy(source, copy, "lm_head.weight", std::string("\0\0\xc0\x7f", 4));
  const auto model = Transformer::Load(copy, {.batch_tokens = 16}, Context(pool_));
  ASSERT_TRUE(model) << model.error().message;
  const Status status = ForEachLogits(
      **model, prompt_, {}, [](int64_t, MatrixView<const float>) -> Status { return {}; });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("after token 0 are not finite"), std::string::npos);
  fs::remove_all(copy);
}

TEST(Loading, ScaleBytesThatAreNoScalesAreRefusedByName) {
  ThreadPool pool(1);
  const fs::path source = fs::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4";
  const fs::path copy = fs::path(testing::TempDir()) / "halfbyte_bad_scales";
  const std::string expert = "model.layers.4.mlp.experts.31.down_proj.weight";
  for (const char* byte : {"\x7f", "\x80", "\xb8"}) {
    WriteDamagedCopy(source, copy, expert + "_scale", byte);
    const auto model = Transformer::Load(copy, {}, Context(pool));
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().message.rfind(expert + ": byte 0x", 0), 0u) << model.error().message;
  }
  fs::remove_all(copy);
}

TEST_F(Engine, ChunkSizesOutOfRangeAreRefused) {
  const auto ignore = [](int64_t, MatrixView<const float>) -> Status { return {}; };
  for (const int64_t chunk : {int64_t{0}, int64_t{-1}, int64_t{17}}) {
    EXPECT_FALSE(ForEachLogits(*model_, prompt_, {{chunk}}, ignore)) << chunk;
  }
  EXPECT_TRUE(ForEachLogits(*model_, prompt_, {{16}}, ignore));
}

TEST(CutIntoContexts, KeepsEveryTokenInOrder) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  EXPECT_EQ(*CutIntoContexts(tokens, 2), (std::vector<std::vector<int32_t>>{{1, 2}, {3, 4}, {5}}));
  EXPECT_EQ(CutIntoContexts(tokens, 100)->size(), 1u);
  EXPECT_FALSE(CutIntoContexts(tokens, 1));
}

class Files : public testing::Test {
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

TEST_F(Files, TokenIdsAreAListOrAListOfLists) {
  EXPECT_EQ(*ReadTokenIds(Write("a", "[1, 2, 3]")), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(ReadTokenSequences(Write("a", "[[1], [2, 3]]"))->size(), 2u);
  for (const char* bad : {"[]", "[[]]", "{}", "[1, \"2\"]", "[1.5]", "[99999999999]", "[1, [2]]",
                          "[[1], 2]", "nonsense", "[[1], [2]]"}) {
    const auto result = ReadTokenIds(Write("bad.json", bad));
    ASSERT_FALSE(result) << bad;
    EXPECT_NE(result.error().message.find("bad.json"), std::string::npos) << bad;
  }
}

TEST_F(Files, DefaultsOfRequestsComeFromGenerationConfig) {
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

TEST_F(Files, GenerationConfigIsRefusedByField) {
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
