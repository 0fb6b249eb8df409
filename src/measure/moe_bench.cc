#include "measure/moe_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>

#include "base/check.h"
#include "base/memory_usage.h"
#include "base/progress.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/packed_linear/packed_linear.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"
#include "kernels/route/router.h"
#include "measure/machine_limits.h"
#include "measure/median.h"
#include "measure/peak_loops.h"
#include "measure/synthetic_experts.h"
#include "moe/expert_exchange.h"
#include "moe/moe_observer.h"
#include "moe/moe_workspace.h"
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

// Seconds of a step; of the slowest rank, once SlowestRank has seen them.
struct StepSeconds {
  double route = 0;
  double layer = 0;
  // Parts of it, if a clock looked on.
  double plan = 0;
  double gate_up = 0;
  double down = 0;

  static constexpr std::array kAll = {&StepSeconds::route, &StepSeconds::layer, &StepSeconds::plan,
                                      &StepSeconds::gate_up, &StepSeconds::down};
};

Result<StepSeconds> SlowestRank(Communicator& ranks, StepSeconds mine) {
  HB_ASSIGN_OR_RETURN(const auto all, ranks.Collect(std::span<const StepSeconds>(&mine, 1)));
  for (const StepSeconds& other : all) {
    for (const auto part : StepSeconds::kAll) mine.*part = std::max(mine.*part, other.*part);
  }
  return mine;
}

Result<double> SumOverRanks(Communicator& ranks, double mine) {
  HB_ASSIGN_OR_RETURN(const auto all, ranks.Collect(std::span<const double>(&mine, 1)));
  return std::accumulate(all.begin(), all.end(), 0.0);
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
  double pack_rate = 0;  // bytes per second; 0: it computes from the stored weights

  // What a step reads of this expert.
  MemorySpan memory(LocalExpert expert) const {
    const PackedExpert* packed = layer.products().packed_expert(expert);
    if (packed == nullptr) return experts.memory(Index(expert));
    const int64_t bytes = packed->gate.bytes() + packed->up.bytes() + packed->down.bytes();
    return {reinterpret_cast<const std::byte*>(packed->gate.data), static_cast<size_t>(bytes)};
  }
};

std::string_view KernelName(const Context& context, const MoeLayer& layer) {
  const PackedKernel* kernel = layer.products().kernel(context);
  return kernel == nullptr ? "stored weights" : kernel->name;
}

// Everything of one run but the weights. Whatever decides how a run goes on is the same on all
// ranks, times too; so all ranks take the same steps.
class Bench {
 public:
  Bench(const Context& context, const MoeBenchOptions& options, Communicator& ranks)
      : context_(context),
        options_(options),
        ranks_(ranks),
        placement_(*ExpertPlacement::Balanced(static_cast<int32_t>(options.shape.experts),
                                              ranks.size(), ranks.rank())),
        routing_(options.shape, options.routing),
        workspace_(MoeBenchLimits(options, ranks.size())) {
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
    if (ranks.size() > 1) exchange_.emplace(ranks, workspace_.limits);
  }

  Result<Subject> MakeSubject(Arithmetic arithmetic) const;
  Result<MoeBenchRow> MeasureRow(Subject& subject, int64_t tokens);
  Status MeasurePeaks();
  void AddLimits(MoeBenchReport& report) const;

 private:
  struct Step {
    StepSeconds seconds;
    int64_t weight_bytes = 0;
    int64_t flops = 0;
  };

  Result<Step> RunStep(MoeLayer& layer, int64_t tokens, PhaseClock* phases = nullptr);
  Result<double> ReadRate(const Subject& subject, int64_t bytes);
  Status MeasurePhases(MoeLayer& layer, MoeBenchRow& row);

  const Context& context_;
  const MoeBenchOptions& options_;
  Communicator& ranks_;
  const ExpertPlacement placement_;
  RoutingSource routing_;
  MoeWorkspace workspace_;
  std::optional<ExpertExchange> exchange_;          // with several ranks
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
  MoeShape mine = options_.shape;
  mine.experts = placement_.local_experts();
  HB_ASSIGN_OR_RETURN(SyntheticExperts experts, SyntheticExperts::Make(context_, mine));
  const MoePacking packing{.pool = &context_.pool(),
                           .release = [&](LocalExpert e) { experts.Drop(Index(e)); }};
  const auto start = Clock::now();
  HB_ASSIGN_OR_RETURN(MoeLayer layer, MoeLayer::Create(params, placement_, experts.weights(),
                                                       "bench moe", packing));
  const double seconds = Seconds(Clock::now() - start);
  const bool packed = layer.products().packed_expert(LocalExpert{0}) != nullptr;
  HB_ASSIGN_OR_RETURN(
      const double rate,
      SumOverRanks(ranks_, static_cast<double>(mine.experts * mine.expert_bytes()) / seconds));
  return Subject{std::move(experts), std::move(layer), packed ? rate : 0};
}

Result<Bench::Step> Bench::RunStep(MoeLayer& layer, int64_t tokens, PhaseClock* phases) {
  const MoeShape& shape = options_.shape;
  const MatrixView<float> logits{logits_.data(), tokens, shape.experts};
  routing_.TakeLogits(logits);
  const MutableRouting routing{{ids_.data(), tokens, shape.top_k},
                               {weights_.data(), tokens, shape.top_k}};
  const MatrixView<const float> hidden{hidden_.data(), tokens, shape.hidden};
  const MatrixView<float> out{out_.data(), tokens, shape.hidden};
  layer.set_observer(phases);
  HB_RETURN_IF_ERROR(ranks_.Barrier());
  const auto start = Clock::now();
  Route(context_, {.experts = shape.experts, .top_k = shape.top_k}, logits, {}, routing);
  const auto routed = Clock::now();
  if (exchange_) {
    HB_RETURN_IF_ERROR(exchange_->Run(context_, layer, hidden, routing, out, workspace_));
  } else {
    layer.Run(context_, hidden, routing, out, workspace_);
  }
  const auto done = Clock::now();
  layer.set_observer(nullptr);
  StepSeconds seconds{.route = Seconds(routed - start), .layer = Seconds(done - routed)};
  if (phases != nullptr) {
    seconds.plan = Seconds(phases->planned - routed);
    seconds.gate_up = Seconds(phases->activated - phases->planned);
    seconds.down = Seconds(done - phases->activated);
  }
  HB_ASSIGN_OR_RETURN(seconds, SlowestRank(ranks_, seconds));
  const int64_t slots = tokens * shape.top_k;
  const std::set<int32_t> touched(ids_.begin(), ids_.begin() + slots);
  return Step{.seconds = seconds,
              .weight_bytes = std::ssize(touched) * shape.expert_bytes(),
              .flops = slots * shape.slot_flops()};
}

// Bytes per second of reading about `bytes` of the next experts, as much on each rank.
Result<double> Bench::ReadRate(const Subject& subject, int64_t bytes) {
  const int64_t expert_bytes = options_.shape.expert_bytes();
  const int64_t count = std::clamp(std::min(bytes, kMaxReadBytes) / expert_bytes / ranks_.size(),
                                   int64_t{1}, options_.shape.experts / ranks_.size());
  std::vector<int64_t> taken(static_cast<size_t>(ranks_.size()));
  std::vector<MemorySpan> memory;
  while (*std::min_element(taken.begin(), taken.end()) < count) {
    const int32_t expert = routing_.cycle().Take(1).front();
    const int32_t owner = placement_.owner(GlobalExpert{expert});
    if (++taken[static_cast<size_t>(owner)] > count || owner != ranks_.rank()) continue;
    memory.push_back(subject.memory(*placement_.ToLocal(expert)));
  }
  HB_RETURN_IF_ERROR(ranks_.Barrier());
  const double mine = static_cast<double>(count * expert_bytes) / SecondsToRead(context_, memory);
  HB_ASSIGN_OR_RETURN(const double rate, SumOverRanks(ranks_, mine));
  reads_.push_back(rate);
  return rate;
}

Result<MoeBenchRow> Bench::MeasureRow(Subject& subject, int64_t tokens) {
  MoeLayer& layer = subject.layer;
  MoeBenchRow row{.tokens = tokens,
                  .arithmetic = layer.params().arithmetic,
                  .kernel = std::string(KernelName(context_, layer))};
  // Pages in, caches warm.
  HB_ASSIGN_OR_RETURN(const Step first, RunStep(layer, tokens));
  double spent = first.seconds.layer;
  int64_t weight_bytes = 0;
  std::vector<double> route, layer_seconds, reads, shares;
  while (row.steps < kMinSteps || (row.steps < kMaxSteps && spent < options_.seconds_per_row)) {
    HB_ASSIGN_OR_RETURN(const Step step, RunStep(layer, tokens));
    HB_ASSIGN_OR_RETURN(const double rate, ReadRate(subject, step.weight_bytes));
    const auto bytes = static_cast<double>(step.weight_bytes);
    route.push_back(step.seconds.route);
    layer_seconds.push_back(step.seconds.layer);
    reads.push_back(rate);
    shares.push_back(bytes / step.seconds.layer / rate);
    weight_bytes += step.weight_bytes;
    row.flops = step.flops;
    ++row.steps;
    spent += step.seconds.route + step.seconds.layer + bytes / rate;
    if (first.seconds.layer > options_.seconds_per_row) break;  // too slow to repeat
  }
  row.weight_bytes = weight_bytes / row.steps;
  row.route_us = Median(route) * 1e6;
  row.layer_us = Median(layer_seconds) * 1e6;
  row.read_bytes_per_second = Median(reads);
  row.read_share = Median(shares);
  HB_RETURN_IF_ERROR(MeasurePhases(layer, row));
  return row;
}

Status Bench::MeasurePhases(MoeLayer& layer, MoeBenchRow& row) {
  const int steps = row.steps < kMinSteps ? 1 : kPhaseSteps;
  PhaseClock phases;
  std::vector<double> plan, gate_up, down;
  for (int i = 0; i < steps; ++i) {
    HB_ASSIGN_OR_RETURN(const Step step, RunStep(layer, row.tokens, &phases));
    plan.push_back(step.seconds.plan);
    gate_up.push_back(step.seconds.gate_up);
    down.push_back(step.seconds.down);
  }
  row.plan_us = Median(plan) * 1e6;
  row.gate_up_us = Median(gate_up) * 1e6;
  row.down_us = Median(down) * 1e6;
  return {};
}

Status Bench::MeasurePeaks() {
  for (const auto& [loop, rates] :
       {std::pair{Int8PeakLoop(), &int8_}, {Bf16PeakLoop(), &bf16_}, {Fp32PeakLoop(), &fp32_}}) {
    HB_RETURN_IF_ERROR(ranks_.Barrier());
    HB_ASSIGN_OR_RETURN(const double rate, SumOverRanks(ranks_, MeasurePeak(context_, loop)));
    rates->push_back(rate);
  }
  return {};
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

Result<MoeBenchReport> BenchMoe(const Context& context, const MoeBenchOptions& options,
                                Communicator& ranks) {
  HB_ASSIGN_OR_RETURN(const BenchRanks numbers, CountBenchRanks(options, ranks));
  HB_RETURN_IF_ERROR(CheckMoeBench(options, numbers, ReadAvailableMemory()));
  HB_RETURN_IF_ERROR(ranks.Barrier());  // all have looked before one takes memory
  Bench bench(context, options, ranks);
  MoeBenchReport report{
      .shape = options.shape,
      .routing = options.routing,
      .ranks = ranks.size(),
      .threads = context.pool().threads(),
      .cpu = CpuModelName(),
      .instruction_set = std::string(CpuIsaName(context.isa())),
      .memory_bytes = ranks.size() * PlanMoeBench(options, ranks.size()).resident_bytes()};
  Progress progress("bench moe", std::ssize(options.tokens) * std::ssize(options.arithmetic),
                    "row");
  HB_RETURN_IF_ERROR(bench.MeasurePeaks());
  for (const Arithmetic arithmetic : options.arithmetic) {
    HB_ASSIGN_OR_RETURN(Subject subject, bench.MakeSubject(arithmetic));
    if (subject.pack_rate > 0) report.pack_bytes_per_second = subject.pack_rate;
    for (const int64_t tokens : options.tokens) {
      HB_ASSIGN_OR_RETURN(report.rows.emplace_back(), bench.MeasureRow(subject, tokens));
      HB_RETURN_IF_ERROR(bench.MeasurePeaks());
      progress.Advance(1);
    }
  }
  bench.AddLimits(report);
  return report;
}

}  // namespace halfbyte
