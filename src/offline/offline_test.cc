// The generation loop and perplexity, on a golden model of 128 ids.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "offline/generator.h"
#include "offline/perplexity.h"
#include "offline/prompt_logits.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

class Offline : public testing::Test {
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

TEST_F(Offline, GreedyGenerationTakesTheBestTokenOfTheWholePrefixEachTime) {
  const GenerateRequest request{
      .prompt = prompt_, .max_tokens = 12, .sampling = {.temperature = 0}};
  std::vector<int32_t> streamed;
  const auto result = GenerateTokens(*model_, request, [&](int32_t token) {
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

TEST_F(Offline, ASeedRepeatsAndAStopIdEnds) {
  GenerateRequest request{.prompt = prompt_, .max_tokens = 20, .sampling = {.seed = 7}};
  const auto ignore = [](int32_t) { return true; };
  const auto first = *GenerateTokens(*model_, request, ignore);
  EXPECT_EQ(GenerateTokens(*model_, request, ignore)->tokens, first.tokens);
  request.sampling.seed = 8;
  EXPECT_NE(GenerateTokens(*model_, request, ignore)->tokens, first.tokens);

  request.sampling.seed = 7;
  request.stop_ids = {first.tokens[5]};
  const auto stopped = *GenerateTokens(*model_, request, ignore);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  const auto end = std::find(first.tokens.begin(), first.tokens.end(), first.tokens[5]) + 1;
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(first.tokens.begin(), end));
  request.min_tokens = end - first.tokens.begin() + 1;
  EXPECT_GE(std::ssize(GenerateTokens(*model_, request, ignore)->tokens), request.min_tokens);
}

TEST_F(Offline, TheCallerEndsATextAndMaskedTokensNeverCome) {
  GenerateRequest request{.prompt = prompt_, .max_tokens = 9, .sampling = {.temperature = 0}};
  int64_t seen = 0;
  const auto three = *GenerateTokens(*model_, request, [&](int32_t) { return ++seen < 3; });
  EXPECT_EQ(three.tokens.size(), 3u);
  EXPECT_EQ(three.finish, FinishReason::kStop);
  request.masked_ids = {three.tokens[0]};
  const auto without = *GenerateTokens(*model_, request, [](int32_t) { return true; });
  EXPECT_EQ(std::ranges::count(without.tokens, three.tokens[0]), 0);
}

TEST_F(Offline, ARepetitionPenaltyKeepsTokensFromComingAgain) {
  GenerateRequest request{.prompt = prompt_, .max_tokens = 40, .sampling = {.temperature = 0}};
  const auto distinct = [&] {
    const auto tokens = GenerateTokens(*model_, request, [](int32_t) { return true; })->tokens;
    return std::set<int32_t>(tokens.begin(), tokens.end()).size();
  };
  const size_t freely = distinct();
  request.sampling.repetition_penalty = 10;
  EXPECT_GT(distinct(), freely);
}

TEST_F(Offline, LengthsAreCheckedBeforeWork) {
  const int64_t context = model_->config().max_position_embeddings;
  const auto message = [&](int64_t prompt_tokens, std::optional<int64_t> max_tokens) {
    const GenerateRequest request{
        .prompt = std::vector<int32_t>(static_cast<size_t>(prompt_tokens), 3),
        .max_tokens = max_tokens};
    const auto result = GenerateTokens(*model_, request, [](int32_t) { return true; });
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

TEST_F(Offline, PerplexityIsTheMeanOfTheLogLikelihoods) {
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

TEST_F(Offline, LogitsThatAreNotFiniteAreAnErrorThatNamesTheToken) {
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

TEST_F(Offline, ChunkSizesOutOfRangeAreRefused) {
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

}  // namespace
}  // namespace halfbyte
