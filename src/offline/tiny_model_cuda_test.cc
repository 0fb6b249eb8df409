// The bundled model on the GPU: as good a model as on the CPU, and the same bits however its text
// is cut.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "device/cuda/gpu_test.h"
#include "offline/generator.h"
#include "offline/perplexity.h"
#include "offline/prompt_logits.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

using Numbers = std::vector<float>;

const fs::path kSource = HALFBYTE_SOURCE_DIR;

class BundledModelOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const auto file =
        SafetensorsFile::Open(kSource / "tests/data/goldens/tiny-v4/golden.safetensors");
    ASSERT_TRUE(file.has_value()) << file.error().message;
    for (const TensorInfo& info : file->tensors()) {
      if (info.name != "val.input_ids") continue;
      const TensorView view = file->View(info);
      for (int64_t i = 0; i < 2048; ++i) text_.push_back(view.Load<int32_t>(i));
    }
    ASSERT_FALSE(text_.empty());
  }

  std::unique_ptr<Transformer> Load(TransformerOptions options) {
    options.logit_rows = options.batch_tokens;
    auto model = Transformer::Load(kSource / "models/tiny-v4-nvfp4", options, Context(pool_));
    HB_CHECK(model.has_value(), "{}", model.error().message);
    return *std::move(model);
  }
  Numbers Logits(Transformer& model, const std::vector<int64_t>& chunks) {
    Numbers all;
    const Status done =
        ForEachLogits(model, text_, chunks, [&](int64_t, MatrixView<const float> logits) -> Status {
          all.insert(all.end(), logits.data, logits.data + logits.rows * logits.columns);
          return {};
        });
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return all;
  }
  static double Distance(const Numbers& a, const Numbers& b) {
    double error = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
      size += double{b[i]} * b[i];
    }
    return std::sqrt(error / size);
  }

  ThreadPool pool_{AvailableProcessors()};
  std::vector<int32_t> text_;
};

TEST_F(BundledModelOnGpu, PredictsTextAsWellAsTheCpu) {
  const std::vector<std::vector<int32_t>> texts{text_};
  for (const Arithmetic arithmetic : {Arithmetic::kW4a16, Arithmetic::kW4a4}) {
    const auto nll = [&](std::optional<int> gpu) {
      const auto model = Load({.arithmetic = arithmetic, .gpu = gpu});
      return MeasurePerplexity(*model, texts, [](int64_t) {})->nll;
    };
    const double cpu = nll({}), gpu = nll(0);
    std::printf("%s: %.5f nats, on the CPU %.5f\n", std::string(ArithmeticName(arithmetic)).c_str(),
                gpu, cpu);
    EXPECT_NEAR(gpu, cpu, arithmetic == Arithmetic::kW4a4 ? 4e-3 : 2e-3);
  }
}

// The yardstick is the CPU's own arithmetic with exact sums.
TEST_F(BundledModelOnGpu, LogitsAreTheCpusButForRoundings) {
  const Numbers cpu = Logits(*Load({}), {}), gpu = Logits(*Load({.gpu = 0}), {});
  const Numbers judge = Logits(*Load({.arithmetic = Arithmetic::kRef}), {});
  std::printf("logits from the CPU: %.3g, judge: %.3g\n", Distance(gpu, cpu), Distance(judge, cpu));
  EXPECT_LE(Distance(gpu, cpu), 1.25 * Distance(judge, cpu));
}

TEST_F(BundledModelOnGpu, BitsDoNotDependOnChunksNorOnGraphs) {
  const auto model = Load({.gpu = 0}), eager = Load({.gpu = 0, .graphs = false});
  const Numbers whole = Logits(*eager, {});
  for (const std::vector<int64_t>& chunks :
       std::vector<std::vector<int64_t>>{{1}, {7, 1, 130, 61}, {500, 3, 1, 1}}) {
    const Numbers cut = Logits(*model, chunks);
    ASSERT_EQ(cut.size(), whole.size());
    const auto [a, b] = std::mismatch(cut.begin(), cut.end(), whole.begin());
    EXPECT_TRUE(a == cut.end()) << "chunks of " << chunks[0] << ": row "
                                << (a - cut.begin()) / model->config().vocab_size;
  }
}

TEST_F(BundledModelOnGpu, GeneratesTheSameTextAgainAndAgain) {
  const auto model = Load({.gpu = 0});
  GenerateRequest request{.prompt = {text_.begin(), text_.begin() + 300}, .max_tokens = 100};
  request.sampling.temperature = 0;
  const auto run = [&] {
    const auto result = GenerateTokens(*model, request, [](int32_t) { return true; });
    HB_CHECK(result.has_value(), "{}", result.error().message);
    std::printf("100 tokens in %.1f ms\n", 1e3 * result->generate_seconds);
    return result->tokens;
  };
  const std::vector<int32_t> first = run();
  EXPECT_EQ(first.size(), 100u);
  EXPECT_EQ(run(), first);
}

}  // namespace
}  // namespace halfbyte
