// The forward pass against tensors that an independent implementation computed in fp32
// (tests/data/goldens/README.md), layer by layer, and the promise that cuts change no bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/transformer.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

// Acceptance is 1e-3 for logits; what fp32 reaches on these models is far below. Residual streams
// grow to about 10, so their last bits weigh more.
constexpr float kTolerance = 5e-5f;
constexpr float kStreamsTolerance = 3e-4f;

fs::path GoldenDirectory(const std::string& name) {
  return fs::path(HALFBYTE_SOURCE_DIR) / "tests/data/goldens" / name;
}

class Golden {
 public:
  explicit Golden(const std::string& name)
      : file_(*SafetensorsFile::Open(GoldenDirectory(name) / "golden.safetensors")) {
    const TensorView ids = View("input_ids");
    for (int64_t i = 0; i < ids.elements(); ++i) tokens_.push_back(ids.Load<int32_t>(i));
  }

  const std::vector<int32_t>& tokens() const { return tokens_; }
  TensorView View(const std::string& name) const {
    for (const TensorInfo& info : file_.tensors()) {
      if (info.name == name) return file_.View(info);
    }
    throw std::runtime_error("golden lacks " + name);
  }
  std::vector<float> Floats(const std::string& name) const {
    const TensorView view = View(name);
    std::vector<float> values(static_cast<size_t>(view.elements()));
    for (int64_t i = 0; i < view.elements(); ++i) {
      values[static_cast<size_t>(i)] = view.Load<float>(i);
    }
    return values;
  }

 private:
  SafetensorsFile file_;
  std::vector<int32_t> tokens_;
};

// Largest difference, printed with its place if it exceeds the tolerance.
void ExpectNear(const std::string& what, MatrixView<const float> value,
                const std::vector<float>& expected, float tolerance = kTolerance) {
  ASSERT_EQ(value.rows * value.columns, std::ssize(expected)) << what;
  float worst = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < std::ssize(expected); ++i) {
    const float difference = std::abs(value.data[i] - expected[static_cast<size_t>(i)]);
    if (!(difference <= worst)) {
      worst = difference;
      at = i;
    }
  }
  EXPECT_LE(worst, tolerance) << what << ", worst at row " << at / value.columns << " column "
                              << at % value.columns << ": " << value.data[at] << " instead of "
                              << expected[static_cast<size_t>(at)];
}

class CompareLayers : public LayerObserver {
 public:
  explicit CompareLayers(const Golden& golden) : golden_(golden) {}

  void OnLayer(const ModelOps& ops, int64_t layer, Rows attention, Rows moe,
               const ModelOps::Choice& choice, Rows streams) override {
    const std::string prefix = fmt::format("layer.{}.", layer);
    const auto expect = [&](const std::string& what, Rows rows, float tolerance) {
      const std::vector<float> values = ops.Read(rows);
      ExpectNear(prefix + what, {values.data(), std::ssize(values) / rows.columns, rows.columns},
                 golden_.Floats(prefix + what), tolerance);
    };
    expect("attention", attention, kTolerance);
    expect("moe", moe, kTolerance);
    expect("streams", streams, kStreamsTolerance);
    CompareRouting(prefix, ops.Read(choice.experts), ops.Read(choice.weights),
                   choice.experts.columns);
    ++layers_seen;
  }

  int64_t layers_seen = 0;

 private:
  // The same experts with the same weights; their order is a matter of taste.
  void CompareRouting(const std::string& prefix, const std::vector<float>& experts,
                      const std::vector<float>& weights, int64_t k) {
    const TensorView indices = golden_.View(prefix + "router.indices");
    const std::vector<float> expected = golden_.Floats(prefix + "router.weights");
    ASSERT_EQ(experts.size(), expected.size());
    for (int64_t t = 0; t < std::ssize(experts) / k; ++t) {
      for (int64_t j = t * k; j < (t + 1) * k; ++j) {
        const auto id = static_cast<float>(indices.Load<int32_t>(j));
        const auto row = experts.begin() + t * k;
        const auto found = std::find(row, row + k, id);
        ASSERT_NE(found, row + k) << prefix << " token " << t << " lacks expert " << id;
        EXPECT_NEAR(weights[static_cast<size_t>(found - experts.begin())],
                    expected[static_cast<size_t>(j)], kTolerance)
            << prefix << " token " << t << " expert " << id;
      }
    }
  }

  const Golden& golden_;
};

std::unique_ptr<Transformer> LoadGolden(const std::string& name, MathMode math,
                                        const Context& context, int64_t reference_tokens = 0) {
  auto model = Transformer::Load(GoldenDirectory(name),
                                 {.math = math, .reference_tokens = reference_tokens}, context);
  if (!model) throw std::runtime_error(model.error().message);
  return std::move(*model);
}

// All logits of `tokens`, fed in chunks of the given sizes (the last one repeats).
std::vector<float> LogitsInChunks(Transformer& model, const std::vector<int32_t>& tokens,
                                  const std::vector<int64_t>& chunks) {
  const auto cache = *model.NewCache({.context_tokens = std::ssize(tokens)});
  Sequence sequence = *cache->NewSequence();
  std::vector<float> all;
  std::span<const int32_t> rest = tokens;
  for (size_t i = 0; !rest.empty(); ++i) {
    const int64_t size =
        std::min(chunks[std::min(i, chunks.size() - 1)], static_cast<int64_t>(rest.size()));
    const BatchItem item{&sequence, rest.first(static_cast<size_t>(size)), LogitsWanted::kAll};
    const auto logits = model.Forward(*cache, {&item, 1});
    if (!logits) throw std::runtime_error(logits.error().message);
    all.insert(all.end(), logits->data, logits->data + logits->rows * logits->columns);
    rest = rest.subspan(static_cast<size_t>(size));
  }
  return all;
}

class GoldenModel : public testing::TestWithParam<std::string> {
 protected:
  ThreadPool pool_{2};
  Context context_{pool_};
};

TEST_P(GoldenModel, EveryLayerAndTheLogitsMatchTheReference) {  // R114, R124, R135
  const Golden golden(GetParam());
  const auto model = LoadGolden(GetParam(), MathMode::kFp32, context_, std::ssize(golden.tokens()));
  const auto cache = *model->NewCache({.context_tokens = std::ssize(golden.tokens())});
  Sequence sequence = *cache->NewSequence();
  CompareLayers compare(golden);
  const BatchItem item{&sequence, golden.tokens(), LogitsWanted::kAll};
  const auto logits = model->Forward(*cache, {&item, 1}, &compare);
  ASSERT_TRUE(logits) << logits.error().message;
  ExpectNear("logits", *logits, golden.Floats("logits"));
  EXPECT_EQ(compare.layers_seen, model->config().layer_count());
}

TEST_P(GoldenModel, AnyCutOfThePromptGivesTheSameBits) {
  const Golden golden(GetParam());
  for (const MathMode math : {MathMode::kFp32, MathMode::kDefault}) {
    const auto model = LoadGolden(GetParam(), math, context_);
    const std::vector<float> whole = LogitsInChunks(*model, golden.tokens(), {512});
    for (const std::vector<int64_t>& chunks : std::vector<std::vector<int64_t>>{
             {1}, {5, 1, 1, 17}, {3}, {4}, {16, 1}, {127, 1, 1}, {20, 7, 130, 2}, {36, 1}}) {
      EXPECT_TRUE(LogitsInChunks(*model, golden.tokens(), chunks) == whole)
          << "chunks starting with " << chunks[0];
    }
  }
}

TEST_P(GoldenModel, ThreadsAndInstructionSetsChangeNoBit) {
  const Golden golden(GetParam());
  const std::vector<float> expected = LogitsInChunks(
      *LoadGolden(GetParam(), MathMode::kDefault, context_), golden.tokens(), {30, 1, 60});
  for (const CpuIsa isa : SupportedCpuIsas()) {
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const auto model = LoadGolden(GetParam(), MathMode::kDefault, Context(pool, isa));
      EXPECT_TRUE(LogitsInChunks(*model, golden.tokens(), {30, 1, 60}) == expected)
          << CpuIsaName(isa) << ", " << threads << " threads";
    }
  }
}

// Three sequences of one batch, each at its own position, equal the same sequences alone.
TEST_P(GoldenModel, SequencesOfARaggedBatchDoNotSeeEachOther) {  // R123
  const Golden golden(GetParam());
  const auto model = LoadGolden(GetParam(), MathMode::kDefault, context_);
  const std::vector<int32_t> a(golden.tokens().begin(), golden.tokens().begin() + 37);
  std::vector<int32_t> b(a.rbegin(), a.rend());
  std::vector<int32_t> c(a.begin() + 5, a.begin() + 30);
  const std::vector<std::vector<int32_t>> prompts = {a, b, c};
  const auto cache = *model->NewCache({.sequences = 3, .context_tokens = 3 * 256});
  std::vector<Sequence> sequences;
  std::vector<std::vector<float>> results(3);
  for (int i = 0; i < 3; ++i) sequences.push_back(*cache->NewSequence());
  // Step s gives sequence i a chunk of 1 + (s + i) % 5 tokens, as long as it has some.
  for (int64_t s = 0;; ++s) {
    std::vector<BatchItem> batch;
    std::vector<size_t> owners;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t done = sequences[i].position();
      const int64_t left = std::ssize(prompts[i]) - done;
      if (left == 0) continue;
      const int64_t count = std::min(left, 1 + (s + static_cast<int64_t>(i)) % 5);
      batch.push_back(
          {&sequences[i],
           std::span(prompts[i]).subspan(static_cast<size_t>(done), static_cast<size_t>(count)),
           LogitsWanted::kAll});
      owners.push_back(i);
    }
    if (batch.empty()) break;
    const auto logits = *model->Forward(*cache, batch);
    int64_t row = 0;
    for (size_t j = 0; j < batch.size(); ++j) {
      const int64_t count = std::ssize(batch[j].tokens);
      std::vector<float>& result = results[owners[j]];
      result.insert(result.end(), logits.row(row), logits.row(row) + count * logits.columns);
      row += count;
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(results[i] == LogitsInChunks(*model, prompts[i], {512})) << "sequence " << i;
  }
}

// Behind the last layer's cache only tokens with logits are computed.
TEST_P(GoldenModel, LogitsDoNotDependOnWhichOthersAreWanted) {
  const Golden golden(GetParam());
  const std::span<const int32_t> tokens = golden.tokens();
  const auto half = tokens.size() / 2;
  // Two threads take shares of the tokens.
  for (const auto& [math, threads] :
       {std::pair{MathMode::kFp32, 1}, std::pair{MathMode::kDefault, 2}}) {
    ThreadPool pool(threads);
    const auto model = LoadGolden(GetParam(), math, Context(pool));
    const std::vector<float> whole = LogitsInChunks(*model, golden.tokens(), {512});
    const auto cache = *model->NewCache({.sequences = 3, .context_tokens = 4 * std::ssize(tokens)});
    std::vector<Sequence> sequences;
    for (int i = 0; i < 3; ++i) sequences.push_back(*cache->NewSequence());
    const auto expect = [&](std::vector<BatchItem> batch, const std::vector<size_t>& positions) {
      const auto logits = *model->Forward(*cache, batch);
      ASSERT_EQ(logits.rows, std::ssize(positions));
      for (size_t i = 0; i < positions.size(); ++i) {
        const float* row = logits.row(static_cast<int64_t>(i));
        const auto columns = static_cast<size_t>(logits.columns);
        EXPECT_TRUE(std::equal(row, row + columns, whole.data() + positions[i] * columns))
            << "position " << positions[i] << ", " << pool.threads() << " threads";
      }
    };
    expect({{&sequences[0], tokens.first(half), LogitsWanted::kNone}}, {});
    expect({{&sequences[0], tokens.subspan(half), LogitsWanted::kLast},
            {&sequences[1], tokens.first(half), LogitsWanted::kNone},
            {&sequences[2], tokens.first(3), LogitsWanted::kAll}},
           {tokens.size() - 1, 0, 1, 2});
    expect({{&sequences[1], tokens.subspan(half), LogitsWanted::kLast},
            {&sequences[2], tokens.subspan(3, 1), LogitsWanted::kLast}},
           {tokens.size() - 1, 3});
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenModel, testing::Values("mixed", "real_rates", "odd_shapes"),
                         [](const auto& test) { return test.param; });

TEST(Transformer, RefusesWhatItCannotRun) {  // R132
  ThreadPool pool(1);
  const auto model = LoadGolden("mixed", MathMode::kFp32, Context(pool));
  const auto cache = *model->NewCache({.context_tokens = 256});
  Sequence sequence = *cache->NewSequence();
  const auto message = [&](std::vector<int32_t> tokens) {
    const BatchItem item{&sequence, tokens};
    const auto result = model->Forward(*cache, {&item, 1});
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_EQ(message({}), "no tokens: a prompt needs at least one");
  EXPECT_EQ(message({5, 128}), "token id 128 is outside the vocabulary of 128 ids");
  EXPECT_EQ(message({-1}), "token id -1 is outside the vocabulary of 128 ids");
  EXPECT_EQ(message(std::vector<int32_t>(513, 1)),
            "a batch of 513 tokens, at most 512 are allowed in one call");
  EXPECT_NE(message(std::vector<int32_t>(300, 1)).find("KV cache: 300 more tokens"),
            std::string::npos);
  EXPECT_EQ(sequence.position(), 0);
  EXPECT_EQ(message({5}), "accepted");
}

// A sequence continued from a snapshot gives the bits of one that ran through.
TEST(Transformer, ASnapshotContinuesExactly) {
  ThreadPool pool(2);
  const Golden golden("real_rates");
  const auto model = LoadGolden("real_rates", MathMode::kDefault, Context(pool));
  const std::span<const int32_t> tokens = golden.tokens();
  const std::vector<float> whole = LogitsInChunks(*model, golden.tokens(), {512});
  const auto cache = *model->NewCache({.sequences = 2, .context_tokens = 1024, .snapshots = 1});
  std::optional<Snapshot> snapshot;
  {
    Sequence first = *cache->NewSequence();
    const BatchItem prefix{&first, tokens.first(256)};
    ASSERT_TRUE(model->Forward(*cache, {&prefix, 1}));
    snapshot = *cache->TakeSnapshot(first);
    // The first sequence goes its own way and must not disturb the snapshot.
    const std::vector<int32_t> other(100, 7);
    const BatchItem more{&first, other};
    ASSERT_TRUE(model->Forward(*cache, {&more, 1}));
  }
  Sequence second = *cache->Continue(*snapshot);
  EXPECT_EQ(second.position(), 256);
  const BatchItem rest{&second, tokens.subspan(256), LogitsWanted::kAll};
  const auto logits = *model->Forward(*cache, {&rest, 1});
  const int64_t vocab = logits.columns;
  EXPECT_TRUE(
      std::equal(logits.data, logits.data + logits.rows * vocab, whole.begin() + 256 * vocab));
}

}  // namespace
}  // namespace halfbyte
