// Whole models of made-up weights on the GPU: against the CPU, and against themselves, to the bit,
// however a step is cut, batched, padded and replayed.
#include "model/cuda/cuda_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "device/cuda/gpu_test.h"
#include "model/cuda/decode_bucket.h"
#include "model/synthetic_weights.h"
#include "model/transformer.h"

namespace halfbyte {
namespace {

using Numbers = std::vector<float>;

LayerConfig Layer(int64_t rate, bool hash_routed = false) {
  const AttentionKind kind = rate == 0   ? AttentionKind::kWindow
                             : rate == 4 ? AttentionKind::kC4
                                         : AttentionKind::kC128;
  return {kind, rate, hash_routed};
}

// The bundled model's.
ModelConfig Tiny() {
  ModelConfig c;
  c.vocab_size = 4096;
  c.hidden_size = 256;
  c.layers = {Layer(0, true), Layer(0, true), Layer(4), Layer(128), Layer(4), Layer(128)};
  c.max_position_embeddings = 4096;
  c.attention_heads = 8;
  c.head_dim = 128;
  c.rope_dim = 32;
  c.q_lora_rank = 128;
  c.o_lora_rank = 128;
  c.o_groups = 2;
  c.sliding_window = 128;
  c.window_rope = {10000, {}};
  c.compressed_rope = {160000, {}};
  c.index_heads = 8;
  c.index_head_dim = 64;
  c.index_topk = 256;
  c.routed_experts = 32;
  c.shared_experts = 1;
  c.experts_per_token = 4;
  c.expert_size = 128;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 10;
  c.hc_streams = 4;
  c.hc_sinkhorn_iterations = 20;
  return c;
}

// Heads of V4-Flash, and little of the rest; entries are selected early.
ModelConfig Flash() {
  ModelConfig c = Tiny();
  c.hidden_size = 1024;
  c.layers = {Layer(0, true), Layer(4), Layer(128), Layer(4)};
  c.attention_heads = 64;
  c.head_dim = 512;
  c.rope_dim = 64;
  c.q_lora_rank = 256;
  c.o_lora_rank = 128;
  c.o_groups = 8;
  c.compressed_rope = {160000, YarnConfig{16, 65536, 32, 1}};
  c.index_heads = 64;
  c.index_head_dim = 128;
  c.index_topk = 64;
  c.routed_experts = 16;
  c.experts_per_token = 6;
  c.expert_size = 256;
  return c;
}

struct Case {
  const char* name;
  ModelConfig config;
  int64_t length;  // of the texts: until entries are selected, and beyond a block's end
};
Case TinyCase() { return {"tiny", Tiny(), 1300}; }
Case FlashCase() { return {"flash", Flash(), 700}; }

std::vector<int32_t> Text(const Case& c, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(c.config.vocab_size) - 1);
  std::vector<int32_t> text(static_cast<size_t>(c.length));
  for (int32_t& token : text) token = id(random);
  return text;
}

constexpr int64_t kBatchTokens = 512;

// The same numbers, but FP8 matrices as bf16 ones.
class Bf16Weights : public WeightSource {
 public:
  explicit Bf16Weights(std::unique_ptr<const WeightSource> source) : source_(std::move(source)) {}

  const ModelConfig& config() const override { return source_->config(); }
  Result<StoredWeight> Stored(const ModuleKey& key) const override {
    HB_ASSIGN_OR_RETURN(const StoredWeight stored, source_->Stored(key));
    const WeightMatrix& w = stored.matrix;
    if (w.format != WeightFormat::kFp8) return stored;
    auto bytes = std::make_shared<std::vector<Bf16>>();
    std::vector<float> row(static_cast<size_t>(w.columns));
    for (int64_t r = 0; r < w.rows; ++r) {
      DequantizeRow(w, r, row.data());
      for (const float x : row) bytes->push_back(ToBf16(x));
    }
    stored.DropPages();
    StoredWeight wide = AsBf16(stored);
    wide.matrix.data = reinterpret_cast<const std::byte*>(bytes->data());
    wide.release = [kept = bytes]() mutable { kept.reset(); };
    return wide;
  }
  Result<StoredWeight> Unread(const ModuleKey& key) const override {
    HB_ASSIGN_OR_RETURN(const StoredWeight stored, source_->Unread(key));
    return stored.matrix.format == WeightFormat::kFp8 ? AsBf16(stored) : stored;
  }
  using WeightSource::Vector;
  Result<Numbers> Vector(const ModuleKey& key, int64_t count) const override {
    return source_->Vector(key, count);
  }
  Result<std::vector<int32_t>> RouterTable(const ModuleKey& key) const override {
    return source_->RouterTable(key);
  }
  std::vector<int64_t> LayerBytes() const override { return source_->LayerBytes(); }

 private:
  static StoredWeight AsBf16(const StoredWeight& fp8) {
    return {.format = StoredFormat::kBf16,
            .matrix = {.format = WeightFormat::kBf16,
                       .rows = fp8.matrix.rows,
                       .columns = fp8.matrix.columns},
            .name = fp8.name};
  }

  std::unique_ptr<const WeightSource> source_;
};

class CudaModelTest : public GpuTest {
 protected:
  std::unique_ptr<const WeightSource> Source(const Case& c, bool bf16) {
    std::unique_ptr<const WeightSource> source = *SyntheticWeights::Create(c.config, pool_);
    if (bf16) return std::make_unique<Bf16Weights>(std::move(source));
    return source;
  }
  std::unique_ptr<Transformer> Load(const Case& c, TransformerOptions options) {
    options.batch_tokens = kBatchTokens;
    options.logit_rows = kBatchTokens;
    auto model =
        Transformer::Load(*SyntheticWeights::Create(c.config, pool_), options, Context(pool_));
    HB_CHECK(model.has_value(), "{}", model.error().message);
    return *std::move(model);
  }
  std::unique_ptr<Transformer> OnGpu(const Case& c, bool graphs = true) {
    return Load(c, {.gpu = 0, .graphs = graphs});
  }

  // Of all tokens of a text in chunks of those sizes, the last repeated.
  Numbers LogitsOf(Transformer& model, const std::vector<int32_t>& text,
                   const std::vector<int64_t>& chunks) {
    const auto cache = *model.NewCache({.context_tokens = std::ssize(text)});
    Sequence sequence = *cache->NewSequence();
    Numbers all;
    for (size_t i = 0; sequence.position() < std::ssize(text); ++i) {
      const int64_t first = sequence.position();
      const int64_t count =
          std::min(chunks[std::min(i, chunks.size() - 1)], std::ssize(text) - first);
      const BatchItem item{
          &sequence,
          std::span(text).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
          LogitsWanted::kAll};
      const auto logits = model.Forward(*cache, {&item, 1});
      HB_CHECK(logits.has_value(), "{}", logits.error().message);
      all.insert(all.end(), logits->data, logits->data + logits->rows * logits->columns);
    }
    return all;
  }

  ThreadPool pool_{AvailableProcessors()};
};

// Bits of [rows, vocab], so that NaN counts; prints where the first difference is.
void ExpectSameBits(const Numbers& got, const Numbers& want, int64_t vocab, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  if (std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0) return;
  int64_t rows = 0, first = -1;
  for (int64_t r = 0; r < std::ssize(got) / vocab; ++r) {
    if (std::memcmp(&got[static_cast<size_t>(r * vocab)], &want[static_cast<size_t>(r * vocab)],
                    static_cast<size_t>(vocab) * sizeof(float)) == 0) {
      continue;
    }
    if (first < 0) first = r;
    ++rows;
  }
  const auto at = static_cast<size_t>(first * vocab);
  ADD_FAILURE() << what << ": " << rows << " of " << got.size() / static_cast<size_t>(vocab)
                << " rows differ, the first is " << first << ": " << got[at] << ", " << got[at + 1]
                << " where " << want[at] << ", " << want[at + 1] << " belong";
}

// sqrt(sum (a - b)^2 / sum b^2)
double Distance(const Numbers& a, const Numbers& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(error / size);
}

// Rows whose largest logit is another's.
int64_t OtherTokens(const Numbers& a, const Numbers& b, int64_t vocab) {
  int64_t others = 0;
  for (auto x = a.begin(), y = b.begin(); x != a.end(); x += vocab, y += vocab) {
    others += std::max_element(x, x + vocab) - x != std::max_element(y, y + vocab) - y;
  }
  return others;
}

// The CPU's own noise is the yardstick: `judge` is its arithmetic with exact sums, which rounds in
// the same places, so that a few roundings go the other way, and here and there another expert or
// entry is chosen; `exact` is its fp32 math.
void ExpectAgreement(const Case& c, const Numbers& gpu, const Numbers& cpu, const Numbers& judge,
                     const Numbers& exact) {
  const int64_t vocab = c.config.vocab_size;
  const double noise = Distance(judge, cpu), gpu_noise = Distance(gpu, cpu);
  const double rounding = Distance(cpu, exact), gpu_rounding = Distance(gpu, exact);
  const int64_t others = OtherTokens(judge, cpu, vocab), gpu_others = OtherTokens(gpu, cpu, vocab);
  std::printf(
      "%s, %zu rows: from the CPU %.3g (judge: %.3g), from fp32 %.3g (CPU: %.3g); another "
      "token is first in %lld rows (judge: %lld)\n",
      c.name, gpu.size() / static_cast<size_t>(vocab), gpu_noise, noise, gpu_rounding, rounding,
      static_cast<long long>(gpu_others), static_cast<long long>(others));
  EXPECT_LE(gpu_noise, 1.25 * noise);
  EXPECT_LE(gpu_rounding, 1.25 * rounding);
  EXPECT_LE(static_cast<double>(gpu_others), 1.25 * static_cast<double>(others) + 10);
}

class OfEachShape : public CudaModelTest, public testing::WithParamInterface<Case (*)()> {};

TEST_P(OfEachShape, LogitsAreTheCpusButForRoundings) {
  const Case c = GetParam()();
  const auto text = Text(c, 1);
  const Numbers gpu = LogitsOf(*OnGpu(c), text, {kBatchTokens});
  const Numbers cpu = LogitsOf(*Load(c, {}), text, {kBatchTokens});
  const Numbers judge = LogitsOf(*Load(c, {.arithmetic = Arithmetic::kRef}), text, {kBatchTokens});
  const Numbers exact = LogitsOf(*Load(c, {.math = MathMode::kFp32}), text, {kBatchTokens});
  ExpectAgreement(c, gpu, cpu, judge, exact);
}

// Chunks of one token are replayed graphs, but for the first of each size.
TEST_P(OfEachShape, BitsDoNotDependOnChunksNorOnGraphs) {
  const Case c = GetParam()();
  const auto text = Text(c, 2);
  const auto model = OnGpu(c), eager = OnGpu(c, /*graphs=*/false);
  const Numbers whole = LogitsOf(*eager, text, {kBatchTokens});
  const auto check = [&](Transformer& how, const std::vector<int64_t>& chunks, const char* what) {
    ExpectSameBits(LogitsOf(how, text, chunks), whole, c.config.vocab_size, what);
  };
  check(*eager, {kBatchTokens}, "the same again");
  check(*eager, {1}, "token by token, eagerly");
  check(*model, {1}, "token by token, graphs");
  check(*model, {7, 1, 130, 61}, "chunks of 7, 1, 130, 61");
  check(*model, {2, 3, 4, 5, 127, 128, 129, 255}, "chunks of 2, 3, 4, 5, 127, 128, 129, 255");
}

// What sequences of two texts are at, and what their logits must be.
struct Texts {
  std::vector<int32_t> tokens[2];
  Numbers logits[2];
};

struct Running {
  Sequence sequence;
  int text;
};

TEST_P(OfEachShape, BitsDoNotDependOnTheBatch) {
  const Case c = GetParam()();
  const auto model = OnGpu(c);
  Texts texts;
  for (int t = 0; t < 2; ++t) {
    texts.tokens[t] = Text(c, 10 + static_cast<uint32_t>(t));
    texts.logits[t] = LogitsOf(*model, texts.tokens[t], {kBatchTokens});
  }
  const int64_t vocab = c.config.vocab_size;
  // 129 sequences of all lengths, each at another position of one of the texts.
  constexpr int64_t kSequences = 129;
  const auto cache = *model->NewCache({.sequences = kSequences, .context_tokens = 129 * c.length});
  std::vector<Running> running;
  for (int64_t i = 0; i < kSequences; ++i) {
    running.push_back({*cache->NewSequence(), static_cast<int>(i % 2)});
    const int64_t length = i * (c.length - 30) / kSequences;
    for (int64_t at = 0; at < length;) {
      const int64_t count = std::min(kBatchTokens, length - at);
      const BatchItem item{&running.back().sequence,
                           std::span(texts.tokens[i % 2])
                               .subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
                           LogitsWanted::kNone};
      ASSERT_TRUE(model->Forward(*cache, {&item, 1}));
      at += count;
    }
  }
  std::mt19937 random(3);
  for (const int64_t batch_size :
       {1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65, 96, 97, 127, 128, 129}) {
    for (int repeat = 0; repeat < 2; ++repeat) {  // eager and captured, then replayed
      std::vector<size_t> order(kSequences);
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::ranges::shuffle(order, random);
      std::vector<BatchItem> batch;
      std::vector<std::pair<int, int64_t>> at;
      for (int64_t i = 0; i < batch_size; ++i) {
        auto& [sequence, text] = running[order[static_cast<size_t>(i)]];
        const int64_t position = sequence.position();
        at.emplace_back(text, position);
        batch.push_back({&sequence,
                         std::span(texts.tokens[text]).subspan(static_cast<size_t>(position), 1),
                         LogitsWanted::kLast});
      }
      const auto logits = model->Forward(*cache, batch);
      ASSERT_TRUE(logits.has_value()) << logits.error().message;
      for (int64_t i = 0; i < batch_size; ++i) {
        const auto [text, position] = at[static_cast<size_t>(i)];
        ASSERT_EQ(
            std::memcmp(logits->row(i), &texts.logits[text][static_cast<size_t>(position * vocab)],
                        static_cast<size_t>(vocab) * sizeof(float)),
            0)
            << "row " << i << " of " << batch_size << ", text " << text << " at " << position;
      }
    }
  }
}

// Steps at random over sequences that begin, fork, are continued from snapshots and end, in a
// workspace that is poisoned before each.
class RandomSteps {
 public:
  RandomSteps(Transformer& model, const Texts& texts, uint32_t seed)
      : model_(model), texts_(texts), random_(seed) {
    auto cache = model.NewCache({.sequences = kSequences,
                                 .context_tokens = kSequences * std::ssize(texts.tokens[0]),
                                 .snapshots = 4});
    HB_CHECK(cache.has_value(), "{}", cache.error().message);
    cache_ = *std::move(cache);
  }

  void Run(int steps) {
    for (step_ = 0; step_ < steps && !testing::Test::HasFatalFailure(); ++step_) {
      Change();
      PoisonWorkspace();
      Step();
    }
    std::printf("%lld rows, %d steps of generation, %d snapshots, %d continued, %d forks\n",
                static_cast<long long>(rows_), generations_, snapshots_taken_, continued_, forked_);
    EXPECT_GT(continued_, 5);
    EXPECT_GT(forked_, 5);
    EXPECT_GT(generations_, steps / 4);
  }

 private:
  static constexpr int64_t kSequences = 20;
  struct Kept {
    Snapshot snapshot;
    int text;
  };

  int64_t Draw(int64_t below) { return static_cast<int64_t>(random_() % below); }
  const std::vector<int32_t>& tokens(const Running& one) const { return texts_.tokens[one.text]; }

  void Change() {
    std::erase_if(running_, [&](const Running& one) {
      return one.sequence.position() == std::ssize(tokens(one));
    });
    const bool room = std::ssize(running_) < kSequences;
    const int64_t what = Draw(8);
    if (room && (running_.empty() || what < 2)) {
      running_.push_back({*cache_->NewSequence(), static_cast<int>(Draw(2))});
    } else if (room && what == 2) {
      const Running& from = running_[static_cast<size_t>(Draw(std::ssize(running_)))];
      std::vector<PageCopy> copies;
      auto fork = cache_->pages().Fork(from.sequence, copies);
      if (!fork) return;
      for (const PageCopy& copy : copies) ASSERT_TRUE(cache_->memory().Copy(copy));
      const int text = from.text;
      running_.push_back({*std::move(fork), text});
      ++forked_;
    } else if (room && what == 3 && !kept_.empty()) {
      const Kept& from = kept_[static_cast<size_t>(Draw(std::ssize(kept_)))];
      running_.push_back({*cache_->Continue(from.snapshot), from.text});
      ++continued_;
    } else if (what == 4 && Draw(4) == 0 && !kept_.empty()) {
      kept_.erase(kept_.begin() + Draw(std::ssize(kept_)));
    } else if (what == 5 && Draw(8) == 0 && running_.size() > 2) {
      running_.erase(running_.begin() + Draw(std::ssize(running_)));
    }
  }

  void PoisonWorkspace() {
    const CudaStepMemory& memory = static_cast<CudaModel&>(model_.device()).workspace();
    const auto poison = [](void* data, int64_t bytes) {
      ASSERT_EQ(cudaMemset(data, 0xff, static_cast<size_t>(bytes)), cudaSuccess);
    };
    poison(memory.arena(), memory.sizes().arena);
    poison(memory.scratch(), memory.sizes().scratch);
    poison(memory.experts().data(), memory.sizes().experts);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // Chunks end at the ends of blocks, where snapshots are taken.
  void Step() {
    const bool generates = Draw(2) == 0;
    std::ranges::shuffle(running_, random_);
    const auto count = 1 + Draw(std::ssize(running_));
    std::vector<BatchItem> batch;
    for (int64_t i = 0; i < count; ++i) {
      Running& one = running_[static_cast<size_t>(i)];
      const int64_t at = one.sequence.position();
      const int64_t left = std::min(std::ssize(tokens(one)), (at / 256 + 1) * 256) - at;
      if (TokensOf(batch) + 200 > kBatchTokens) break;
      constexpr LogitsWanted kWanted[] = {LogitsWanted::kNone, LogitsWanted::kLast,
                                          LogitsWanted::kAll};
      const int64_t chunk = generates ? 1 : std::min(left, 1 + Draw(Draw(4) == 0 ? 200 : 20));
      batch.push_back(
          {&one.sequence,
           std::span(tokens(one)).subspan(static_cast<size_t>(at), static_cast<size_t>(chunk)),
           generates ? LogitsWanted::kLast : kWanted[Draw(3)]});
    }
    generations_ += generates;
    std::vector<int64_t> ends;
    for (const BatchItem& item : batch) {
      ends.push_back(item.sequence->position() + std::ssize(item.tokens));
    }
    const auto logits = model_.Forward(*cache_, batch);
    ASSERT_TRUE(logits.has_value()) << logits.error().message;
    Check(*logits, batch, ends);
    for (int64_t i = 0; i < std::ssize(batch); ++i) {
      Running& one = running_[static_cast<size_t>(i)];
      if (one.sequence.position() % 256 != 0 || kept_.size() == 4) continue;
      auto snapshot = cache_->TakeSnapshot(one.sequence);
      if (!snapshot) continue;
      kept_.push_back({*std::move(snapshot), one.text});
      ++snapshots_taken_;
    }
  }

  static int64_t TokensOf(const std::vector<BatchItem>& batch) {
    int64_t tokens = 0;
    for (const BatchItem& item : batch) tokens += std::ssize(item.tokens);
    return tokens;
  }

  void Check(MatrixView<const float> logits, const std::vector<BatchItem>& batch,
             const std::vector<int64_t>& ends) {
    const int64_t vocab = logits.columns;
    int64_t row = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      const int text = running_[i].text;
      const int64_t wanted = LogitsRows(batch[i].logits, std::ssize(batch[i].tokens));
      for (int64_t at = ends[i] - wanted; at < ends[i]; ++at, ++row, ++rows_) {
        ASSERT_EQ(
            std::memcmp(logits.row(row), &texts_.logits[text][static_cast<size_t>(at * vocab)],
                        static_cast<size_t>(vocab) * sizeof(float)),
            0)
            << "step " << step_ << " of " << batch.size() << " sequences, sequence " << i
            << ", text " << text << " at " << at << ": " << logits.row(row)[0] << " where "
            << texts_.logits[text][static_cast<size_t>(at * vocab)] << " belongs";
      }
    }
    ASSERT_EQ(row, logits.rows);
  }

  Transformer& model_;
  const Texts& texts_;
  std::mt19937 random_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Running> running_;
  std::vector<Kept> kept_;
  int step_ = 0, generations_ = 0, snapshots_taken_ = 0, continued_ = 0, forked_ = 0;
  int64_t rows_ = 0;
};

TEST_P(OfEachShape, AThousandStepsAtRandomGiveEverySequenceItsOwnBits) {
  const Case c = GetParam()();
  const auto model = OnGpu(c);
  Texts texts;
  for (int t = 0; t < 2; ++t) {
    texts.tokens[t] = Text(c, 20 + static_cast<uint32_t>(t));
    texts.logits[t] = LogitsOf(*model, texts.tokens[t], {kBatchTokens});
  }
  RandomSteps(*model, texts, 5).Run(1000);
}

// For the eye, not a test of speed.
TEST_P(OfEachShape, StepsOfGenerationAreTimed) {
  const Case c = GetParam()();
  for (const bool graphs : {false, true}) {
    const auto model = OnGpu(c, graphs);
    const auto cache = *model->NewCache({.context_tokens = c.length});
    Sequence sequence = *cache->NewSequence();
    const auto text = Text(c, 4);
    const auto start = std::chrono::steady_clock::now();
    constexpr int kSteps = 200;
    for (size_t i = 0; i < kSteps; ++i) {
      const BatchItem item{&sequence, std::span(text).subspan(i, 1)};
      ASSERT_TRUE(model->Forward(*cache, {&item, 1}));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s, %s: %.0f us a step of one token\n", c.name, graphs ? "graphs" : "eager",
                1e6 * seconds.count() / kSteps);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OfEachShape, testing::Values(&TinyCase, &FlashCase),
                         [](const auto& which) { return which.param().name; });

// What layers compute, one after the other: where the devices part, if they do.
TEST_F(CudaModelTest, AnObserverSeesTheSameRows) {
  struct Seen : LayerObserver {
    void OnLayer(const ModelOps& ops, int64_t, Rows attention, Rows moe,
                 const ModelOps::Choice& choice, Rows streams) override {
      layers.push_back(
          {ops.Read(attention), ops.Read(moe), ops.Read(streams), ops.Read(choice.experts)});
    }
    struct Layer {
      Numbers attention, moe, streams, experts;
    };
    std::vector<Layer> layers;
  };
  for (const bool bf16 : {true, false}) {
    const Case c = TinyCase();
    const auto text = Text(c, 6);
    Seen seen[2];
    for (const bool gpu : {false, true}) {
      TransformerOptions options{.batch_tokens = 64};
      if (gpu) options.gpu = 0;
      const auto model = *Transformer::Load(Source(c, bf16), options, Context(pool_));
      const auto cache = *model->NewCache({.context_tokens = 64});
      Sequence sequence = *cache->NewSequence();
      const BatchItem item{&sequence, std::span(text).first(64)};
      ASSERT_TRUE(model->Forward(*cache, {&item, 1}, &seen[gpu]));
    }
    ASSERT_EQ(seen[0].layers.size(), seen[1].layers.size());
    for (size_t l = 0; l < seen[0].layers.size(); ++l) {
      const Seen::Layer &cpu = seen[0].layers[l], &gpu = seen[1].layers[l];
      int64_t other = 0;
      for (size_t i = 0; i < cpu.experts.size(); ++i) other += cpu.experts[i] != gpu.experts[i];
      std::printf(
          "%s, layer %zu: attention %.3g, experts %.3g, streams %.3g from the CPU's; %lld "
          "of %zu choices differ\n",
          bf16 ? "bf16" : "FP8", l, Distance(gpu.attention, cpu.attention),
          Distance(gpu.moe, cpu.moe), Distance(gpu.streams, cpu.streams),
          static_cast<long long>(other), cpu.experts.size());
      // Before a choice has gone another way, a few roundings have.
      if (l == 0) {
        EXPECT_LE(Distance(gpu.attention, cpu.attention), 0.01);
        EXPECT_LE(Distance(gpu.moe, cpu.moe), 0.01);
        EXPECT_LE(Distance(gpu.streams, cpu.streams), 0.01);
        EXPECT_EQ(other, 0);
      }
    }
  }
}

// bf16 holds FP8 numbers with their scales exactly, and products of either are the same sums.
TEST_F(CudaModelTest, WeightsInFp8AndInBf16GiveTheSameBits) {
  for (const Case& c : {TinyCase(), FlashCase()}) {
    auto text = Text(c, 8);
    text.resize(200);
    Numbers logits[2];
    for (const bool bf16 : {false, true}) {
      const auto model = *Transformer::Load(
          Source(c, bf16), {.batch_tokens = kBatchTokens, .logit_rows = kBatchTokens, .gpu = 0},
          Context(pool_));
      logits[bf16] = LogitsOf(*model, text, {150, 1});
    }
    ExpectSameBits(logits[0], logits[1], c.config.vocab_size, c.name);
  }
}

TEST_F(CudaModelTest, AStepThatWantsMoreLogitsThanThereIsMemoryForIsRefused) {
  const Case c = TinyCase();
  auto model = *Transformer::Load(*SyntheticWeights::Create(c.config, pool_),
                                  {.batch_tokens = 256, .logit_rows = 1, .gpu = 0}, Context(pool_));
  const auto cache = *model->NewCache({.context_tokens = 256});
  Sequence sequence = *cache->NewSequence();
  const auto text = Text(c, 7);
  const BatchItem item{&sequence, std::span(text).first(200), LogitsWanted::kAll};
  const auto refused = model->Forward(*cache, {&item, 1});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("200 rows of logits"), std::string::npos)
      << refused.error().message;
}

TEST_F(CudaModelTest, TakesNoMoreThanItsPartOfTheMemory) {
  ThreadPool pool(1);
  const ModelConfig config = Tiny();
  const auto source = *SyntheticWeights::Create(config, pool);
  const auto loaded =
      CudaModel::Load(*source, {.gpu = 0, .gpu_memory = 1e-6}, Context(pool), [](int64_t) {});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().kind, ErrorKind::kMemory);
  EXPECT_NE(loaded.error().message.find("of --gpu-memory-utilization 1e-06 on GPU 0"),
            std::string::npos)
      << loaded.error().message;
}

// Needs no GPU: it is refused before one is looked for.
TEST(CudaModel, RefusesWhatItDoesNotCompute) {
  ThreadPool pool(1);
  const auto error_of = [&](const ModelConfig& config, const TransformerOptions& options) {
    const auto source = *SyntheticWeights::Create(config, pool);
    const auto loaded = CudaModel::Load(*source, options, Context(pool), [](int64_t) {});
    return loaded ? std::string() : loaded.error().message;
  };
  const auto names = [&](const ModelConfig& config, const char* what) {
    EXPECT_NE(error_of(config, {.gpu = 0}).find(what), std::string::npos)
        << error_of(config, {.gpu = 0});
  };
  EXPECT_NE(error_of(Tiny(), {.math = MathMode::kFp32, .gpu = 0}).find("default math"),
            std::string::npos);
  EXPECT_NE(error_of(Tiny(), {.arithmetic = Arithmetic::kRef, .gpu = 0}).find("w4a16"),
            std::string::npos);
  EXPECT_NE(error_of(Tiny(), {.reference_tokens = 9, .gpu = 0}).find("PyTorch"), std::string::npos);
  ModelConfig config = Tiny();
  config.head_dim = 192;
  names(config, "8 heads of 192 numbers");
  config = Tiny();
  config.index_heads = 65;
  names(config, "65 index heads");
  config = Tiny();
  config.hc_streams = 3;
  names(config, "3 residual streams");
  config = Tiny();
  config.q_lora_rank = 72;
  names(config, "q_lora_rank 72");
}

}  // namespace
}  // namespace halfbyte
