#include "measure/cuda/cuda_moe_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/memory_usage.h"
#include "base/progress.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/route/cuda_router.h"
#include "kernels/sm90_moe/sm90_gemm.h"
#include "measure/cuda/cuda_limits.h"
#include "measure/median.h"
#include "measure/synthetic_experts.h"
#include "moe/cuda/cuda_moe_layer.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoutings = 16;  // of a row
// A time is the median over runs of some steps back to back: as many as fit into kRunSeconds, each
// run after a pause of kPauseShare times its length, so that the board is cool.
constexpr int kRuns = 15;
constexpr double kRunSeconds = 0.02;
constexpr size_t kMinRunSteps = 4;
constexpr double kPauseShare = 5;
constexpr int64_t kMaxReadBytes = int64_t{4} << 30;
constexpr double kSteadySeconds = 0.8;  // of which the second half counts
constexpr float kSwigluLimit = 10;

void Pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(std::max(seconds, 0.005)));
}

// One step's buffers, and its graphs.
struct Step {
  DeviceBuffer logits, ids, weights;
  CudaMoeCall call;
  int64_t weight_bytes = 0;
  CudaGraph layer, route;
  CudaGraph parts;  // with events after each part
};

const CudaMoeLayer::Step kParts[] = {CudaMoeLayer::Step::kPlan, CudaMoeLayer::Step::kGateUp,
                                     CudaMoeLayer::Step::kDown, CudaMoeLayer::Step::kCombine};

class GpuBench {
 public:
  static Result<GpuBench> Create(const MoeBenchOptions& options);
  Result<MoeBenchRow> MeasureRow(const CudaMoeLayer& layer, int64_t tokens);
  Status MeasureLimits();
  void AddLimits(MoeBenchReport& report) const;
  const CudaDevice& device() const { return device_; }

 private:
  explicit GpuBench(const MoeBenchOptions& options)
      : options_(options), routing_(options.shape, options.routing) {}
  Result<Step> MakeStep(const CudaMoeLayer& layer, int64_t tokens);
  Result<double> RunSeconds(std::span<const Step> steps, CudaGraph Step::*graph) const;
  Result<double> MedianRun(const std::vector<Step>& steps, CudaGraph Step::*graph) const;
  Result<double> SteadyRun(const std::vector<Step>& steps) const;
  Status MeasureParts(const std::vector<Step>& steps, MoeBenchRow& row) const;

  MoeBenchOptions options_;
  CudaDevice device_;
  CudaStream stream_;
  CudaEvent start_, end_;
  CudaEvent marks_[5];
  CudaMoeWorkspace workspace_;
  DeviceBuffer hidden_, out_, read_;
  DeviceBuffer counters_;  // as they always count in a server
  std::optional<CudaBf16Product> product_;
  std::string no_product_;  // why there is none
  RoutingSource routing_;
  std::vector<double> reads_, flops_;
};

Result<GpuBench> GpuBench::Create(const MoeBenchOptions& options) {
  GpuBench bench(options);
  const MoeLimits limits = MoeBenchLimits(options, 1);
  HB_ASSIGN_OR_RETURN(bench.device_, CudaDevice::Open());
  HB_ASSIGN_OR_RETURN(bench.stream_, CudaStream::Create());
  HB_ASSIGN_OR_RETURN(bench.start_, CudaEvent::Create());
  HB_ASSIGN_OR_RETURN(bench.end_, CudaEvent::Create());
  for (CudaEvent& mark : bench.marks_) {
    HB_ASSIGN_OR_RETURN(mark, CudaEvent::Create());
  }
  HB_ASSIGN_OR_RETURN(const MoeKernels* const kernels, MoeKernelsOf(bench.device_));
  HB_ASSIGN_OR_RETURN(bench.workspace_, CudaMoeWorkspace::Create(*kernels, limits));
  std::normal_distribution<float> normal;
  std::vector<Bf16> hidden(static_cast<size_t>(limits.tokens * limits.hidden));
  std::mt19937 random(11);
  for (Bf16& x : hidden) x = ToBf16(normal(random));
  const int64_t bytes = std::ssize(hidden) * int64_t{sizeof(Bf16)};
  HB_ASSIGN_OR_RETURN(bench.hidden_, DeviceBuffer::Upload(hidden.data(), bytes, "hidden rows"));
  HB_ASSIGN_OR_RETURN(bench.out_, DeviceBuffer::Allocate(bytes, "output rows"));
  const CudaMoeCounters zeros;
  HB_ASSIGN_OR_RETURN(bench.counters_, DeviceBuffer::Upload(&zeros, sizeof(zeros), "counters"));
  const int64_t l2 = bench.device_.l2_bytes;
  const int64_t read = std::clamp(options.shape.experts * options.shape.expert_bytes(), 8 * l2,
                                  std::max(8 * l2, kMaxReadBytes));
  HB_ASSIGN_OR_RETURN(bench.read_, DeviceBuffer::Allocate(read, "memory to read"));
  HB_RETURN_IF_ERROR(CudaStatus(cudaMemset(bench.read_.data(), 0x5a, static_cast<size_t>(read)),
                                "memory to read"));
  auto product = CudaBf16Product::Create();
  if (product) {
    bench.product_ = *std::move(product);
  } else {
    bench.no_product_ = product.error().message;
  }
  return bench;
}

Status GpuBench::MeasureLimits() {
  HB_ASSIGN_OR_RETURN(const double read, CudaReadRate(stream_, read_.data(), read_.bytes()));
  reads_.push_back(read);
  if (!product_) return {};
  HB_ASSIGN_OR_RETURN(const double flops, product_->Rate(stream_));
  flops_.push_back(flops);
  return {};
}

void GpuBench::AddLimits(MoeBenchReport& report) const {
  report.read_bytes_per_second = Median(reads_);
  report.bf16_flops = flops_.empty() ? 0 : Median(flops_);
  report.bf16_instruction = flops_.empty() ? no_product_ : "cuBLASLt";
}

Result<Step> GpuBench::MakeStep(const CudaMoeLayer& layer, int64_t tokens) {
  const MoeShape& shape = options_.shape;
  const int64_t slots = tokens * shape.top_k;
  Step step;
  std::vector<float> logits(static_cast<size_t>(tokens * shape.experts));
  routing_.TakeLogits({logits.data(), tokens, shape.experts});
  HB_ASSIGN_OR_RETURN(
      step.logits,
      DeviceBuffer::Upload(logits.data(), std::ssize(logits) * int64_t{sizeof(float)}, "logits"));
  HB_ASSIGN_OR_RETURN(step.ids, DeviceBuffer::Allocate(slots * int64_t{sizeof(int32_t)}, "ids"));
  HB_ASSIGN_OR_RETURN(step.weights,
                      DeviceBuffer::Allocate(slots * int64_t{sizeof(float)}, "weights"));
  step.call = {.hidden = hidden_.as<Bf16>(),
               .topk_ids = step.ids.as<int32_t>(),
               .topk_weights = step.weights.as<float>(),
               .tokens = tokens,
               .top_k = shape.top_k,
               .out = out_.data(),
               .counters = counters_.as<CudaMoeCounters>()};
  HB_ASSIGN_OR_RETURN(step.route, CudaGraph::Capture(stream_, [&] {
                        return CudaStatus(
                            LaunchRouter({.experts = shape.experts, .top_k = shape.top_k},
                                         {.logits = step.logits.as<float>(),
                                          .tokens = tokens,
                                          .topk_ids = step.ids.as<int32_t>(),
                                          .topk_weights = step.weights.as<float>()},
                                         stream_.get()),
                            "router");
                      }));
  HB_ASSIGN_OR_RETURN(step.layer, CudaGraph::Capture(stream_, [&] {
                        return layer.Run(stream_.get(), step.call, workspace_);
                      }));
  HB_ASSIGN_OR_RETURN(
      step.parts, CudaGraph::Capture(stream_, [&]() -> Status {
        HB_RETURN_IF_ERROR(marks_[0].RecordInGraph(stream_));
        for (size_t i = 0; i < std::size(kParts); ++i) {
          HB_RETURN_IF_ERROR(layer.RunStep(kParts[i], stream_.get(), step.call, workspace_));
          HB_RETURN_IF_ERROR(marks_[i + 1].RecordInGraph(stream_));
        }
        return {};
      }));
  HB_RETURN_IF_ERROR(step.route.Launch(stream_));
  HB_RETURN_IF_ERROR(stream_.Synchronize());
  std::vector<int32_t> ids(static_cast<size_t>(slots));
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(ids.data(), step.ids.data(), ids.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
      "ids"));
  step.weight_bytes = std::ssize(std::set<int32_t>(ids.begin(), ids.end())) * shape.expert_bytes();
  return step;
}

// Of one step, when all are run once back to back.
Result<double> GpuBench::RunSeconds(std::span<const Step> steps, CudaGraph Step::*graph) const {
  HB_RETURN_IF_ERROR(start_.Record(stream_));
  for (const Step& step : steps) HB_RETURN_IF_ERROR((step.*graph).Launch(stream_));
  HB_RETURN_IF_ERROR(end_.Record(stream_));
  HB_ASSIGN_OR_RETURN(const double seconds, CudaEvent::Seconds(start_, end_));
  return seconds / static_cast<double>(steps.size());
}

Result<double> GpuBench::MedianRun(const std::vector<Step>& steps, CudaGraph Step::*graph) const {
  HB_ASSIGN_OR_RETURN(const double first, RunSeconds(steps, graph));
  const size_t count =
      std::clamp(static_cast<size_t>(kRunSeconds / first), kMinRunSteps, steps.size());
  std::vector<double> seconds;
  for (size_t i = 0; i < kRuns; ++i) {
    Pause(kPauseShare * first * static_cast<double>(count));
    const size_t begin = i * count % (steps.size() - count + 1);
    HB_ASSIGN_OR_RETURN(const double run,
                        RunSeconds(std::span(steps).subspan(begin, count), graph));
    seconds.push_back(run);
  }
  return Median(seconds);
}

Result<double> GpuBench::SteadyRun(const std::vector<Step>& steps) const {
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<double> seconds;
  while (passed() < kSteadySeconds) {
    HB_ASSIGN_OR_RETURN(const double run, RunSeconds(steps, &Step::layer));
    if (passed() > kSteadySeconds / 2) seconds.push_back(run);
  }
  return seconds.empty() ? RunSeconds(steps, &Step::layer) : Median(seconds);
}

Status GpuBench::MeasureParts(const std::vector<Step>& steps, MoeBenchRow& row) const {
  std::vector<double> parts[std::size(kParts)];
  for (const Step& step : steps) {
    HB_RETURN_IF_ERROR(step.parts.Launch(stream_));
    HB_RETURN_IF_ERROR(stream_.Synchronize());
    for (size_t i = 0; i < std::size(kParts); ++i) {
      HB_ASSIGN_OR_RETURN(const double seconds, CudaEvent::Seconds(marks_[i], marks_[i + 1]));
      parts[i].push_back(seconds);
    }
  }
  row.plan_us = Median(parts[0]) * 1e6;
  row.gate_up_us = Median(parts[1]) * 1e6;
  row.down_us = (Median(parts[2]) + Median(parts[3])) * 1e6;
  return {};
}

Result<MoeBenchRow> GpuBench::MeasureRow(const CudaMoeLayer& layer, int64_t tokens) {
  const MoeShape& shape = options_.shape;
  std::vector<Step> steps;
  double weight_bytes = 0;
  for (int i = 0; i < kRoutings; ++i) {
    HB_ASSIGN_OR_RETURN(Step step, MakeStep(layer, tokens));
    weight_bytes += static_cast<double>(step.weight_bytes) / kRoutings;
    steps.push_back(std::move(step));
  }
  MoeBenchRow row{.tokens = tokens,
                  .arithmetic = layer.params().arithmetic,
                  .kernel = layer.TilingFor(tokens, shape.top_k).name,
                  .steps = kRuns * kRoutings,
                  .weight_bytes = static_cast<int64_t>(weight_bytes),
                  .flops = tokens * shape.top_k * shape.slot_flops()};
  HB_ASSIGN_OR_RETURN(const double route, MedianRun(steps, &Step::route));
  HB_ASSIGN_OR_RETURN(const double seconds, MedianRun(steps, &Step::layer));
  HB_RETURN_IF_ERROR(MeasureParts(steps, row));
  HB_ASSIGN_OR_RETURN(const double steady, SteadyRun(steps));
  Pause(kSteadySeconds);
  HB_RETURN_IF_ERROR(MeasureLimits());
  row.route_us = route * 1e6;
  row.layer_us = seconds * 1e6;
  row.steady_us = steady * 1e6;
  row.read_bytes_per_second = reads_.back();
  row.read_share = weight_bytes / seconds / reads_.back();
  return row;
}

MoeParams ParamsOf(const MoeShape& shape, Arithmetic arithmetic) {
  return {.hidden = shape.hidden,
          .intermediate = shape.intermediate,
          .arithmetic = arithmetic,
          .swiglu = {.limit = kSwigluLimit},
          // As a calibrated checkpoint would have them: hidden and h stay near 1.
          .gate_up_input_scale = GlobalScale::FromAmax(8),
          .down_input_scale = GlobalScale::FromAmax(8)};
}

}  // namespace

Result<MoeBenchReport> BenchMoeOnGpu(const Context& context, const MoeBenchOptions& options) {
  HB_RETURN_IF_ERROR(CheckMoeBench(options, {}, ReadAvailableMemory()));
  HB_ASSIGN_OR_RETURN(GpuBench bench, GpuBench::Create(options));
  MoeBenchReport report{.shape = options.shape,
                        .routing = options.routing,
                        .threads = context.pool().threads(),
                        .cpu = bench.device().name,
                        .instruction_set = "sm_90a"};
  HB_ASSIGN_OR_RETURN(const SyntheticExperts experts,
                      SyntheticExperts::Make(context, options.shape));
  const auto placement = ExpertPlacement::Single(static_cast<int32_t>(options.shape.experts));
  Progress progress("bench moe", std::ssize(options.tokens) * std::ssize(options.arithmetic),
                    "row");
  for (const Arithmetic arithmetic : options.arithmetic) {
    const auto start = Clock::now();
    HB_ASSIGN_OR_RETURN(const CudaMoeLayer layer,
                        CudaMoeLayer::Create(bench.device(), ParamsOf(options.shape, arithmetic),
                                             placement, experts.weights(), "bench moe"));
    report.pack_bytes_per_second =
        static_cast<double>(options.shape.experts * options.shape.expert_bytes()) /
        std::chrono::duration<double>(Clock::now() - start).count();
    report.memory_bytes = layer.peak_device_bytes() +
                          CudaMoeWorkspace::Bytes(layer.kernels(), MoeBenchLimits(options, 1));
    for (const int64_t tokens : options.tokens) {
      HB_ASSIGN_OR_RETURN(MoeBenchRow row, bench.MeasureRow(layer, tokens));
      report.rows.push_back(std::move(row));
      progress.Advance(1);
    }
  }
  bench.AddLimits(report);
  return report;
}

std::string ExplainMoeOnGpu(const MoeShape& shape, std::span<const int64_t> tokens) {
  std::string text;
  for (const int64_t count : tokens) {
    const int64_t slots = count * shape.top_k;
    const sm90::GemmVariant variant = sm90::GemmVariantFor(slots, shape.experts);
    text += fmt::format("{} tokens: {:.1f} rows per expert, {}\n", count,
                        static_cast<double>(slots) / static_cast<double>(shape.experts),
                        sm90::GemmVariantName(variant));
  }
  return text;
}

}  // namespace halfbyte
