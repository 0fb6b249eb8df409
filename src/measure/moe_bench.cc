#include "measure/moe_bench.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <span>

#include "base/check.h"
#include "base/memory_usage.h"
#include "base/progress.h"
#include "kernels/packed_linear/packed_linear.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"
#include "measure/machine_limits.h"
#include "measure/peak_loops.h"
#include "measure/rotating_routing.h"
#include "measure/synthetic_experts.h"
#include "moe/moe_observer.h"
#include "moe/moe_workspace.h"
#include "moe/router.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMinSteps = 3;
constexpr int kMaxSteps = 400;
constexpr int kPhaseSteps = 5;
constexpr int64_t kMaxReadBytes = int64_t{1} << 30;  // of one read pass
constexpr float kSwigluLimit = 10;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double Median(std::vector<double> values) {
  HB_CHECK(!values.empty(), "no values");
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

MoeLimits LimitsOf(const MoeBenchOptions& options) {
  return {.tokens = *std::max_element(options.tokens.begin(), options.tokens.end()),
          .top_k = options.shape.top_k,
          .experts = options.shape.experts,
          .hidden = options.shape.hidden,
          .intermediate = options.shape.intermediate};
}

// Notes when a layer is done planning and when it has h.
class PhaseClock : public MoeObserver {
 public:
  void OnGateUpInput(const Sample&) override { planned = Clock::now(); }
  void OnDownInput(const Sample&) override { activated = Clock::now(); }

  Clock::time_point planned;
  Clock::time_point activated;
};

// A layer and the stored weights it was made from.
struct Subject {
  SyntheticExperts experts;
  MoeLayer layer;
  double pack_seconds = 0;  // 0: it computes from the stored weights

  // What a step reads of this expert.
  MemorySpan memory(int32_t expert) const {
    const PackedExpert* packed = layer.packed_expert(LocalExpert{expert});
    if (packed == nullptr) return experts.memory(expert);
    const int64_t bytes = packed->gate.bytes() + packed->up.bytes() + packed->down.bytes();
    return {reinterpret_cast<const std::byte*>(packed->gate.data), static_cast<size_t>(bytes)};
  }
};

std::string_view KernelName(const Context& context, const MoeLayer& layer) {
  if (layer.packed_expert(LocalExpert{0}) == nullptr) return "stored weights";
  return BestPackedKernel(PackedArithmeticOf(layer.params().arithmetic), context.isa()).name;
}

// Everything of one run but the weights.
class Bench {
 public:
  Bench(const Context& context, const MoeBenchOptions& options)
      : context_(context),
        options_(options),
        routing_(options.shape),
        workspace_(LimitsOf(options)) {
    const auto tokens = static_cast<size_t>(workspace_.limits.tokens);
    const auto hidden = static_cast<size_t>(options.shape.hidden);
    hidden_.resize(tokens * hidden);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& x : hidden_) x = RoundToBf16(normal(random));
    out_.resize(tokens * hidden);
    logits_.resize(tokens * static_cast<size_t>(options.shape.experts));
    ids_.resize(tokens * static_cast<size_t>(options.shape.top_k));
    weights_.resize(ids_.size());
  }

  Result<Subject> MakeSubject(Arithmetic arithmetic) const;
  MoeBenchRow MeasureRow(Subject& subject, int64_t tokens);
  void MeasurePeaks();
  void AddLimits(MoeBenchReport& report) const;

 private:
  struct Step {
    Clock::time_point start, routed, done;
    int64_t weight_bytes = 0;
    int64_t flops = 0;

    double layer_seconds() const { return Seconds(done - routed); }
  };

  Step RunStep(const MoeLayer& layer, int64_t tokens);
  double ReadRate(const Subject& subject, int64_t bytes);
  void MeasurePhases(MoeLayer& layer, MoeBenchRow& row);

  const Context& context_;
  const MoeBenchOptions& options_;
  RotatingRouting routing_;
  MoeWorkspace workspace_;
  std::vector<float> hidden_;                       // [tokens, hidden], bf16 values
  std::vector<float> out_;                          // [tokens, hidden]
  std::vector<float> logits_;                       // [tokens, experts]
  std::vector<int32_t> ids_;                        // [tokens, top_k]
  std::vector<float> weights_;                      // [tokens, top_k]
  std::vector<double> reads_, int8_, bf16_, fp32_;  // per second
};

Result<Subject> Bench::MakeSubject(Arithmetic arithmetic) const {
  const auto amax_scale = [](float amax) { return GlobalScaleFor(amax, Nvfp4Rule::kAmaxTo6); };
  MoeParams params{.hidden = options_.shape.hidden,
                   .intermediate = options_.shape.intermediate,
                   .arithmetic = arithmetic,
                   .swiglu = {.limit = kSwigluLimit}};
  // As a calibrated checkpoint would have them: hidden and h stay near 1.
  params.gate_up_input_scale = amax_scale(8);
  params.down_input_scale = amax_scale(8);
  HB_ASSIGN_OR_RETURN(SyntheticExperts experts, SyntheticExperts::Make(context_, options_.shape));
  const auto placement = ExpertPlacement::Single(static_cast<int32_t>(options_.shape.experts));
  const MoePacking packing{.pool = &context_.pool(),
                           .release = [&](LocalExpert e) { experts.Drop(Index(e)); }};
  const auto start = Clock::now();
  HB_ASSIGN_OR_RETURN(MoeLayer layer,
                      MoeLayer::Create(params, placement, experts.weights(), "bench moe", packing));
  const double seconds = Seconds(Clock::now() - start);
  const bool packed = layer.packed_expert(LocalExpert{0}) != nullptr;
  return Subject{std::move(experts), std::move(layer), packed ? seconds : 0};
}

Bench::Step Bench::RunStep(const MoeLayer& layer, int64_t tokens) {
  const MoeShape& shape = options_.shape;
  const MatrixView<float> logits{logits_.data(), tokens, shape.experts};
  routing_.TakeLogits(logits);
  const MutableRouting routing{{ids_.data(), tokens, shape.top_k},
                               {weights_.data(), tokens, shape.top_k}};
  const auto start = Clock::now();
  Route(context_, {.experts = shape.experts, .top_k = shape.top_k}, logits, {}, routing);
  const auto routed = Clock::now();
  layer.Run(context_, {hidden_.data(), tokens, shape.hidden}, routing,
            {out_.data(), tokens, shape.hidden}, workspace_);
  const auto done = Clock::now();
  const int64_t slots = tokens * shape.top_k;
  const std::set<int32_t> touched(ids_.begin(), ids_.begin() + slots);
  return {.start = start,
          .routed = routed,
          .done = done,
          .weight_bytes = std::ssize(touched) * shape.expert_bytes(),
          .flops = slots * shape.slot_flops()};
}

// Bytes per second of reading about `bytes` of the next experts.
double Bench::ReadRate(const Subject& subject, int64_t bytes) {
  const int64_t expert_bytes = options_.shape.expert_bytes();
  const int64_t count =
      std::clamp(std::min(bytes, kMaxReadBytes) / expert_bytes, int64_t{1}, options_.shape.experts);
  std::vector<MemorySpan> memory;
  for (const int32_t expert : routing_.Take(count)) memory.push_back(subject.memory(expert));
  const double rate = static_cast<double>(count * expert_bytes) / SecondsToRead(context_, memory);
  reads_.push_back(rate);
  return rate;
}

MoeBenchRow Bench::MeasureRow(Subject& subject, int64_t tokens) {
  MoeLayer& layer = subject.layer;
  MoeBenchRow row{.tokens = tokens,
                  .arithmetic = layer.params().arithmetic,
                  .kernel = std::string(KernelName(context_, layer))};
  const Clock::time_point start = Clock::now();
  RunStep(layer, tokens);  // pages in, caches warm
  const double first = Seconds(Clock::now() - start);
  std::vector<double> route, layer_seconds, reads, shares;
  while (row.steps < kMinSteps ||
         (row.steps < kMaxSteps && Seconds(Clock::now() - start) < options_.seconds_per_row)) {
    const Step step = RunStep(layer, tokens);
    const double rate = ReadRate(subject, step.weight_bytes);
    route.push_back(Seconds(step.routed - step.start));
    layer_seconds.push_back(step.layer_seconds());
    reads.push_back(rate);
    shares.push_back(static_cast<double>(step.weight_bytes) / step.layer_seconds() / rate);
    row.weight_bytes = step.weight_bytes;
    row.flops = step.flops;
    ++row.steps;
    if (first > options_.seconds_per_row) break;  // too slow to repeat
  }
  row.route_us = Median(route) * 1e6;
  row.layer_us = Median(layer_seconds) * 1e6;
  row.read_bytes_per_second = Median(reads);
  row.read_share = Median(shares);
  MeasurePhases(layer, row);
  return row;
}

void Bench::MeasurePhases(MoeLayer& layer, MoeBenchRow& row) {
  const int steps = row.steps < kMinSteps ? 1 : kPhaseSteps;
  PhaseClock phases;
  std::vector<double> plan, gate_up, down;
  layer.set_observer(&phases);
  for (int i = 0; i < steps; ++i) {
    const Step step = RunStep(layer, row.tokens);
    plan.push_back(Seconds(phases.planned - step.routed));
    gate_up.push_back(Seconds(phases.activated - phases.planned));
    down.push_back(Seconds(step.done - phases.activated));
  }
  layer.set_observer(nullptr);
  row.plan_us = Median(plan) * 1e6;
  row.gate_up_us = Median(gate_up) * 1e6;
  row.down_us = Median(down) * 1e6;
}

void Bench::MeasurePeaks() {
  int8_.push_back(MeasurePeak(context_, Int8PeakLoop()));
  bf16_.push_back(MeasurePeak(context_, Bf16PeakLoop()));
  fp32_.push_back(MeasurePeak(context_, Fp32PeakLoop()));
}

void Bench::AddLimits(MoeBenchReport& report) const {
  report.read_bytes_per_second = Median(reads_);
  report.int8_ops = Median(int8_);
  report.bf16_flops = Median(bf16_);
  report.fp32_flops = Median(fp32_);
  report.int8_instruction = Int8PeakLoop().instruction;
  report.bf16_instruction = Bf16PeakLoop().instruction;
}

}  // namespace

int64_t MoeBenchBytes(const MoeBenchOptions& options) {
  const MoeLimits limits = LimitsOf(options);
  const int64_t rows = limits.tokens * (2 * limits.hidden + limits.experts + 2 * limits.top_k);
  const MoeShape& shape = options.shape;
  // All experts, stored or packed; one in both forms while it is packed; what all are copies of;
  // and one projection before it is quantized.
  const int64_t weights = (shape.experts + 2) * shape.expert_bytes() +
                          shape.hidden * shape.intermediate * int64_t{sizeof(float)};
  return weights + MoeWorkspace::Bytes(limits) + rows * int64_t{sizeof(float)};
}

Status CheckMoeBench(const MoeBenchOptions& options, int64_t available_bytes) {
  if (options.tokens.empty()) return MakeError("--tokens names no number of tokens");
  if (options.arithmetic.empty()) return MakeError("--arithmetic names no arithmetic");
  for (const int64_t tokens : options.tokens) {
    if (tokens < 1 || tokens > kMaxBenchTokens) {
      return MakeError("--tokens {} is outside 1..{}", tokens, kMaxBenchTokens);
    }
  }
  const int64_t needed = MoeBenchBytes(options);
  if (needed > available_bytes) {
    const MoeShape& shape = options.shape;
    return MakeError(
        "{} experts of {} and {} tokens need {}, and {} are free; give a --shape H,I,E,K with "
        "fewer experts (one of {},{} takes {}) or fewer --tokens",
        shape.experts, HumanQuantity(static_cast<double>(shape.expert_bytes()), "B"),
        LimitsOf(options).tokens, HumanQuantity(static_cast<double>(needed), "B"),
        HumanQuantity(static_cast<double>(available_bytes), "B"), shape.hidden, shape.intermediate,
        HumanQuantity(static_cast<double>(shape.expert_bytes()), "B"));
  }
  return {};
}

Result<MoeBenchReport> BenchMoe(const Context& context, const MoeBenchOptions& options) {
  HB_RETURN_IF_ERROR(
      CheckMoeBench(options, AvailableMemoryBytes().value_or(std::numeric_limits<int64_t>::max())));
  Bench bench(context, options);
  MoeBenchReport report{.shape = options.shape,
                        .threads = context.pool().threads(),
                        .cpu = CpuModelName(),
                        .instruction_set = std::string(CpuIsaName(context.isa())),
                        .memory_bytes = MoeBenchBytes(options)};
  Progress progress("bench moe", std::ssize(options.tokens) * std::ssize(options.arithmetic),
                    "row");
  bench.MeasurePeaks();
  for (const Arithmetic arithmetic : options.arithmetic) {
    HB_ASSIGN_OR_RETURN(Subject subject, bench.MakeSubject(arithmetic));
    if (subject.pack_seconds > 0) {
      report.pack_bytes_per_second =
          static_cast<double>(options.shape.experts * options.shape.expert_bytes()) /
          subject.pack_seconds;
    }
    for (const int64_t tokens : options.tokens) {
      report.rows.push_back(bench.MeasureRow(subject, tokens));
      bench.MeasurePeaks();
      progress.Advance(1);
    }
  }
  bench.AddLimits(report);
  return report;
}

}  // namespace halfbyte
