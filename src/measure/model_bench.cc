#include "measure/model_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "base/progress.h"
#include "device/zeroed_memory.h"
#include "measure/machine_limits.h"
#include "measure/median.h"
#include "measure/model_bench_plan.h"
#include "measure/packed_gemm.h"
#include "measure/peak_loops.h"
#include "measure/seconds_since.h"
#include "model/synthetic_cache.h"
#include "model/synthetic_weights.h"

namespace halfbyte {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFewestSteps = 3;

using Rates = std::array<double, kWeightFormats>;

// Everything of one run.
class ModelBench {
 public:
  ModelBench(const Context& context, const ModelBenchOptions& options,
             std::unique_ptr<Transformer> model)
      : context_(context),
        options_(options),
        model_(std::move(model)),
        meter_(model_->source()),
        random_(5) {
    model_->set_meter(&meter_);
  }

  Status PrepareLimits(int64_t weight_bytes);
  Result<ModelBenchRow> MeasureGeneration(int64_t sequences, int64_t context);
  Result<ModelBenchRow> MeasurePrompt(int64_t tokens);
  void MeasurePeaks();
  void AddLimits(ModelBenchReport& report) const;

 private:
  struct Gemm {
    size_t format;
    PackedGemm product;
    std::vector<double> rates;
  };

  std::vector<int32_t> RandomTokens(int64_t count);
  Status Continue(KvCache& cache, Sequence& sequence, int64_t tokens);
  double ReadRate(int64_t bytes);
  Rates MeasureGemms();
  void AddStep(double seconds, ModelBenchRow& row);
  void FinishRow(ModelBenchRow& row);

  const Context& context_;
  const ModelBenchOptions& options_;
  const std::unique_ptr<Transformer> model_;
  OperationMeter meter_;
  std::mt19937 random_;
  ZeroedMemory read_;
  int64_t read_bytes_ = 0;
  std::vector<Gemm> gemms_;
  std::array<std::vector<double>, kOperationKinds> operation_seconds_;  // of a row's steps
  std::vector<double> reads_, int8_, bf16_;                             // per second
};

Status ModelBench::PrepareLimits(int64_t weight_bytes) {
  read_bytes_ = ReadPassBytes(weight_bytes);
  HB_ASSIGN_OR_RETURN(read_, ZeroedMemory::Allocate(read_bytes_, "read pass", Pages::kHuge));
  context_.pool().ParallelFor(read_bytes_, 1 << 20, [&](int64_t begin, int64_t end) {
    std::fill(read_.data() + begin, read_.data() + end, std::byte{1});
  });
  for (const ModuleKey& key : GemmWeights(options_.config)) {
    HB_ASSIGN_OR_RETURN(const StoredWeight weight, model_->source().Stored(key));
    HB_ASSIGN_OR_RETURN(PackedGemm gemm, PackedGemm::Create(context_, weight.matrix,
                                                            options_.arithmetic, options_.chunk));
    gemms_.push_back({static_cast<size_t>(weight.matrix.format), std::move(gemm), {}});
    weight.DropPages();
  }
  return {};
}

std::vector<int32_t> ModelBench::RandomTokens(int64_t count) {
  std::uniform_int_distribution<int32_t> id(0,
                                            static_cast<int32_t>(options_.config.vocab_size - 1));
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = id(random_);
  return tokens;
}

// As if the model had seen so many more tokens.
Status ModelBench::Continue(KvCache& cache, Sequence& sequence, int64_t tokens) {
  while (tokens > 0) {
    const int64_t count = std::min(tokens, model_->options().batch_tokens);
    HB_RETURN_IF_ERROR(cache.pages().Reserve(sequence, count));
    cache.pages().Advance(sequence, count);
    tokens -= count;
  }
  const auto seed = static_cast<uint64_t>(sequence.pages().slot);
  FillCache(context_.pool(), options_.config, sequence.pages(), seed,
            static_cast<CpuKvMemory&>(cache.memory()));
  return {};
}

double ModelBench::ReadRate(int64_t bytes) {
  const int64_t count = std::clamp(bytes, int64_t{4096}, read_bytes_);
  const MemorySpan memory{read_.data(), static_cast<size_t>(count)};
  reads_.push_back(static_cast<double>(count) / SecondsToRead(context_, {&memory, 1}));
  return reads_.back();
}

// What the meter saw in a step that took so long.
void ModelBench::AddStep(double seconds, ModelBenchRow& row) {
  ++row.steps;
  row.work += meter_.total().work;
  for (int k = 0; k < kOperationKinds; ++k) {
    const OperationSum& sum = meter_.of(static_cast<OperationKind>(k));
    OperationSum& all = row.operations[static_cast<size_t>(k)];
    all.calls += sum.calls;
    all.work += sum.work;
    operation_seconds_[static_cast<size_t>(k)].push_back(sum.seconds);
  }
  row.shortest_seconds = row.steps == 1 ? seconds : std::min(row.shortest_seconds, seconds);
}

// Sums over steps become means, and times medians.
void ModelBench::FinishRow(ModelBenchRow& row) {
  const auto mean = [&](OperationWork& work) {
    work.weight_bytes /= row.steps;
    work.cache_bytes /= row.steps;
    for (int64_t& flops : work.product_flops) flops /= row.steps;
    work.other_flops /= row.steps;
  };
  mean(row.work);
  for (size_t k = 0; k < row.operations.size(); ++k) {
    OperationSum& sum = row.operations[k];
    sum.calls /= row.steps;
    sum.seconds = Median(std::exchange(operation_seconds_[k], {}));
    mean(sum.work);
  }
}

Result<ModelBenchRow> ModelBench::MeasureGeneration(int64_t sequences, int64_t context) {
  ModelBenchRow row{.sequences = sequences, .context = context, .new_tokens = sequences};
  HB_ASSIGN_OR_RETURN(const auto cache, model_->NewCache(GenerationCache(sequences, context)));
  std::vector<Sequence> all;
  for (int64_t i = 0; i < sequences; ++i) {
    HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
    HB_RETURN_IF_ERROR(Continue(*cache, sequence, context - 1));
    all.push_back(std::move(sequence));
  }
  std::vector<double> steps, layers, reads, shares, layer_shares;
  double spent = 0;
  // The first one, which nobody counts, warms up.
  for (int64_t s = 0; s < kMaxModelBenchSteps; ++s) {
    const std::vector<int32_t> tokens = RandomTokens(sequences);
    std::vector<BatchItem> batch;
    for (size_t i = 0; i < all.size(); ++i) batch.push_back({&all[i], {&tokens[i], 1}});
    meter_.Reset();
    const auto start = Clock::now();
    HB_RETURN_IF_ERROR(model_->Forward(*cache, batch));
    const double seconds = SecondsSince(start);
    if (s == 0) continue;
    AddStep(seconds, row);
    const OperationSum &head = meter_.of(OperationKind::kLogits), all_operations = meter_.total();
    const double rate = ReadRate(all_operations.work.bytes());
    const auto share = [&](int64_t bytes, double in) {
      return static_cast<double>(bytes) / in / rate;
    };
    steps.push_back(seconds);
    layers.push_back(seconds - head.seconds);
    reads.push_back(rate);
    shares.push_back(share(all_operations.work.bytes(), seconds));
    layer_shares.push_back(
        share(all_operations.work.bytes() - head.work.bytes(), seconds - head.seconds));
    spent += seconds;
    if (row.steps >= kFewestSteps && spent >= options_.seconds_per_row) break;
  }
  row.seconds = Median(steps);
  row.layer_seconds = Median(layers);
  row.read_bytes_per_second = Median(reads);
  row.read_share = Median(shares);
  row.layer_read_share = Median(layer_shares);
  FinishRow(row);
  return row;
}

Result<ModelBenchRow> ModelBench::MeasurePrompt(int64_t tokens) {
  ModelBenchRow row{.sequences = 1, .new_tokens = tokens};
  std::vector<double> steps, layers;
  double spent = 0;
  const Rates before = MeasureGemms();
  while (row.steps == 0 || (spent < options_.seconds_per_row && row.steps < kMaxModelBenchSteps)) {
    HB_ASSIGN_OR_RETURN(const auto cache, model_->NewCache(PromptCache(tokens)));
    HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
    const std::vector<int32_t> prompt = RandomTokens(tokens);
    meter_.Reset();
    const auto start = Clock::now();
    for (int64_t begin = 0; begin < tokens; begin += options_.chunk) {
      const int64_t count = std::min(options_.chunk, tokens - begin);
      const BatchItem item{
          &sequence,
          std::span(prompt).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
          begin + count == tokens ? LogitsWanted::kLast : LogitsWanted::kNone};
      HB_RETURN_IF_ERROR(model_->Forward(*cache, {&item, 1}));
    }
    const double seconds = SecondsSince(start);
    AddStep(seconds, row);
    steps.push_back(seconds);
    layers.push_back(seconds - meter_.of(OperationKind::kLogits).seconds);
    spent += seconds;
  }
  const Rates after = MeasureGemms();
  row.seconds = Median(steps);
  row.layer_seconds = Median(layers);
  FinishRow(row);
  for (size_t f = 0; f < before.size(); ++f) {
    const auto flops = static_cast<double>(row.work.product_flops[f]);
    if (flops > 0) row.gemm_seconds += 2 * flops / (before[f] + after[f]);
  }
  return row;
}

Rates ModelBench::MeasureGemms() {
  Rates rates = {};
  for (Gemm& gemm : gemms_) {
    rates[gemm.format] = gemm.product.Measure(context_);
    gemm.rates.push_back(rates[gemm.format]);
  }
  return rates;
}

void ModelBench::MeasurePeaks() {
  int8_.push_back(MeasurePeak(context_, Int8PeakLoop()));
  bf16_.push_back(MeasurePeak(context_, Bf16PeakLoop()));
}

void ModelBench::AddLimits(ModelBenchReport& report) const {
  if (!reads_.empty()) report.read_bytes = Median(reads_);
  report.int8_ops = Median(int8_);
  report.bf16_flops = Median(bf16_);
  for (const Gemm& gemm : gemms_) {
    if (!gemm.rates.empty()) report.gemm_flops[gemm.format] = Median(gemm.rates);
  }
}

}  // namespace

Result<ModelBenchReport> BenchModel(const Context& context, const ModelBenchOptions& options) {
  HB_ASSIGN_OR_RETURN(const MemoryPlan plan,
                      CheckModelBench(options, context.pool(), ReadAvailableMemory()));
  ModelBenchReport report{.options = options,
                          .threads = context.pool().threads(),
                          .cpu = CpuModelName(),
                          .instruction_set = std::string(CpuIsaName(context.isa())),
                          .memory_bytes = plan.resident_bytes()};
  HB_ASSIGN_OR_RETURN(auto source, SyntheticWeights::Create(options.config, context.pool()));
  const std::vector<int64_t> layers = source->LayerBytes();
  report.weight_bytes = std::reduce(layers.begin(), layers.end());
  const auto start = Clock::now();
  HB_ASSIGN_OR_RETURN(
      auto model, Transformer::Load(std::move(source), ModelBenchTransformer(options), context));
  report.making_seconds = SecondsSince(start);
  ModelBench bench(context, options, std::move(model));
  HB_RETURN_IF_ERROR(bench.PrepareLimits(report.weight_bytes));
  Progress progress(
      "bench model",
      std::ssize(options.batches) * std::ssize(options.contexts) + std::ssize(options.prompts),
      "row");
  bench.MeasurePeaks();
  // A row that nobody counts: experts that nothing has read since they were packed are slow.
  if (!options.batches.empty() && !options.contexts.empty()) {
    HB_RETURN_IF_ERROR(bench.MeasureGeneration(std::ranges::max(options.batches),
                                               std::ranges::min(options.contexts)));
  }
  const auto add = [&](Result<ModelBenchRow> row) -> Status {
    HB_ASSIGN_OR_RETURN(report.rows.emplace_back(), std::move(row));
    bench.MeasurePeaks();
    progress.Advance(1);
    return {};
  };
  for (const int64_t sequences : options.batches) {
    for (const int64_t length : options.contexts) {
      HB_RETURN_IF_ERROR(add(bench.MeasureGeneration(sequences, length)));
    }
  }
  for (const int64_t tokens : options.prompts) {
    HB_RETURN_IF_ERROR(add(bench.MeasurePrompt(tokens)));
  }
  bench.AddLimits(report);
  return report;
}

}  // namespace halfbyte
