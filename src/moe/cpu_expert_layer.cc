// Rows to fp32 and back, counters added after each call.
#include "moe/cpu_expert_layer.h"

#include <mutex>
#include <span>
#include <utility>

#include "base/memory_plan.h"
#include "base/thread_pool.h"
#include "device/context.h"
#include "moe/moe_workspace.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

struct CpuWorkspace : ExpertLayer::Workspace {
  CpuWorkspace(const MoeLimits& limits, int threads)
      : pool(threads),
        context(pool),
        memory(limits),
        hidden(std::make_unique_for_overwrite<float[]>(Elements(limits))),
        out(std::make_unique_for_overwrite<float[]>(Elements(limits))) {}

  Result<bool> IsBusyFor(void*) const override { return false; }

  static size_t Elements(const MoeLimits& limits) {
    return static_cast<size_t>(limits.tokens) * static_cast<size_t>(limits.hidden);
  }

  ThreadPool pool;
  Context context;
  MoeWorkspace memory;
  std::unique_ptr<float[]> hidden;  // [tokens, hidden] of bf16 rows
  std::unique_ptr<float[]> out;     // [tokens, hidden], before they become bf16 rows
};

// Calls convert(begin, end) on pieces of [0, count) in the workspace's threads.
template <class Convert>
void ConvertElements(const CpuWorkspace& workspace, int64_t count, const Convert& convert) {
  constexpr int64_t kGrain = 16384;
  workspace.context.pool().ParallelFor(count, kGrain, convert);
}

MatrixView<const float> HiddenRows(const CpuWorkspace& workspace, const ExpertCall& call,
                                   int64_t width) {
  if (call.hidden_type == RowType::kF32) {
    return {static_cast<const float*>(call.hidden), call.tokens, width};
  }
  const auto* from = static_cast<const Bf16*>(call.hidden);
  float* to = workspace.hidden.get();
  ConvertElements(workspace, call.tokens * width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = ToFloat(from[i]);
  });
  return {to, call.tokens, width};
}

class CpuExpertLayer : public ExpertLayer {
 public:
  CpuExpertLayer(RoutedLayer layer, int threads) : layer_(std::move(layer)), threads_(threads) {}

  const MoeParams& params() const override { return layer_.experts.params(); }
  const ExpertPlacement& placement() const override { return layer_.experts.placement(); }
  const RoutingRule& routing() const override { return layer_.routing; }
  ExpertLayerMemory memory() const override {
    return {.weight_bytes = layer_.experts.weight_bytes()};
  }

  int64_t WorkspaceBytes(const MoeLimits& limits) const override {
    return MoeWorkspace::Bytes(limits) + 2 * int64_t{sizeof(float)} * limits.tokens * limits.hidden;
  }
  Result<std::unique_ptr<Workspace>> CreateWorkspace(const MoeLimits& limits) const override {
    MemoryPlan plan;
    plan.Add(fmt::format("rows of {} tokens", limits.tokens), WorkspaceBytes(limits));
    HB_RETURN_IF_ERROR(plan.Check(ReadAvailableMemory(), "the workspace",
                                  "give a smaller max_tokens, or more memory"));
    return std::make_unique<CpuWorkspace>(limits, threads_);
  }
  Status Run(Workspace& workspace, const ExpertCall& call) const override;
  Status Route(Workspace& workspace, const RouteCall& call) const override;
  Result<ExpertLayerCounters> ReadCounters() const override;

 private:
  Status CheckTokenIds(const RouteCall& call) const;

  RoutedLayer layer_;
  int threads_;  // of each workspace

  mutable std::mutex mutex_;  // taken once per call, after the work
  mutable ExpertLayerCounters counters_;
};

Status CpuExpertLayer::Run(Workspace& any, const ExpertCall& call) const {
  auto& workspace = static_cast<CpuWorkspace&>(any);
  const int64_t width = params().hidden;
  const bool direct = call.out_type == RowType::kF32;
  const MatrixView<float> out{direct ? static_cast<float*>(call.out) : workspace.out.get(),
                              call.tokens, width};
  const Routing routing{{call.topk_ids, call.tokens, call.top_k},
                        {call.topk_weights, call.tokens, call.top_k}};
  MoeCounters counters;
  layer_.experts.Run(workspace.context, HiddenRows(workspace, call, width), routing, out,
                     workspace.memory, &counters);
  if (!direct) {
    auto* to = static_cast<Bf16*>(call.out);
    ConvertElements(workspace, call.tokens * width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = ToBf16(out.data[i]);
    });
  }
  const std::lock_guard lock(mutex_);
  counters_.gate_up += counters.gate_up;
  counters_.down += counters.down;
  return {};
}

Status CpuExpertLayer::CheckTokenIds(const RouteCall& call) const {
  const int64_t vocabulary = layer_.routing.vocabulary();
  for (int64_t t = 0; t < call.tokens; ++t) {
    if (call.token_ids[t] < 0 || call.token_ids[t] >= vocabulary) {
      return MakeError("token_ids[{}]: {} is outside 0..{}", t, call.token_ids[t], vocabulary - 1);
    }
  }
  return {};
}

Status CpuExpertLayer::Route(Workspace& any, const RouteCall& call) const {
  const bool by_id = layer_.routing.by_token_id();
  if (by_id) HB_RETURN_IF_ERROR(CheckTokenIds(call));
  const RouterParams& router = layer_.routing.params;
  const MatrixView<const float> logits{call.logits, call.tokens, router.experts};
  const MutableRouting routing{{call.topk_ids, call.tokens, router.top_k},
                               {call.topk_weights, call.tokens, router.top_k}};
  // Token ids are read, and have been checked, only where there is a table.
  const size_t ids = by_id ? static_cast<size_t>(call.tokens) : 0;
  const RouterCounters counters = layer_.routing.Route(static_cast<CpuWorkspace&>(any).context,
                                                       logits, {call.token_ids, ids}, routing);
  const std::lock_guard lock(mutex_);
  counters_.router.rows += counters.rows;
  counters_.router.bad_rows += counters.bad_rows;
  return {};
}

Result<ExpertLayerCounters> CpuExpertLayer::ReadCounters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace

Result<std::unique_ptr<ExpertLayer>> CreateCpuExpertLayer(RoutedLayerParts parts, int threads) {
  ThreadPool pool(threads);
  HB_ASSIGN_OR_RETURN(RoutedLayer layer, RoutedLayer::Create(std::move(parts), pool));
  return std::make_unique<CpuExpertLayer>(std::move(layer), threads);
}

}  // namespace halfbyte
