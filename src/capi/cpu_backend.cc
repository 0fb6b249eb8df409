// Layers of the C interface on the CPU: rows to fp32 and back, counters added after each call.
#include <mutex>
#include <span>

#include "base/memory_plan.h"
#include "base/thread_pool.h"
#include "capi/moe_backend.h"
#include "device/context.h"
#include "moe/moe_workspace.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

struct CpuWorkspace : MoeBackend::Workspace {
  CpuWorkspace(const MoeLimits& limits, int threads)
      : pool(threads),
        context(pool),
        memory(limits),
        hidden(std::make_unique_for_overwrite<float[]>(Elements(limits))),
        out(std::make_unique_for_overwrite<float[]>(Elements(limits))) {}

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

MatrixView<const float> HiddenRows(const CpuWorkspace& workspace,
                                   const halfbyte_moe_run_arguments& run, int64_t width) {
  if (run.hidden_type == HALFBYTE_MOE_F32_ROWS) {
    return {static_cast<const float*>(run.hidden), run.tokens, width};
  }
  const auto* from = static_cast<const Bf16*>(run.hidden);
  float* to = workspace.hidden.get();
  ConvertElements(workspace, run.tokens * width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = ToFloat(from[i]);
  });
  return {to, run.tokens, width};
}

halfbyte_moe_stage_counters StageCounters(const Nvfp4BlockStats& stats) {
  return {.blocks = stats.blocks,
          .zero = stats.zero,
          .flushed = stats.flushed,
          .at_max = stats.at_max,
          .clipped = stats.clipped,
          .non_finite = stats.non_finite,
          .amax = stats.amax};
}

class CpuBackend : public MoeBackend {
 public:
  CpuBackend(RoutedLayer layer, int threads) : layer_(std::move(layer)), threads_(threads) {}

  const MoeParams& params() const override { return layer_.experts.params(); }
  const ExpertPlacement& placement() const override { return layer_.experts.placement(); }
  const RoutingRule& routing() const override { return layer_.routing; }
  BackendMemory memory() const override { return {.weight_bytes = layer_.experts.weight_bytes()}; }

  uint64_t WorkspaceBytes(const MoeLimits& limits) const override {
    return static_cast<uint64_t>(MoeWorkspace::Bytes(limits)) +
           2 * sizeof(float) * CpuWorkspace::Elements(limits);
  }
  Result<std::unique_ptr<Workspace>> CreateWorkspace(const MoeLimits& limits) const override {
    MemoryPlan plan;
    plan.Add(fmt::format("rows of {} tokens", limits.tokens),
             static_cast<int64_t>(WorkspaceBytes(limits)));
    HB_RETURN_IF_ERROR(plan.Check(ReadAvailableMemory(), "the workspace",
                                  "give a smaller max_tokens, or more memory"));
    return std::make_unique<CpuWorkspace>(limits, threads_);
  }
  Result<int> Run(Workspace& workspace, const halfbyte_moe_run_arguments& run) const override;
  Result<int> Route(Workspace& workspace, const halfbyte_moe_route_arguments& route) const override;
  Result<halfbyte_moe_counters> ReadCounters() const override;

 private:
  Status CheckTokenIds(const halfbyte_moe_route_arguments& route) const;

  RoutedLayer layer_;
  int threads_;  // of each workspace

  mutable std::mutex mutex_;  // taken once per call, after the work
  mutable MoeCounters counters_;
  mutable RouterCounters router_counters_;
};

Result<int> CpuBackend::Run(Workspace& any, const halfbyte_moe_run_arguments& run) const {
  auto& workspace = static_cast<CpuWorkspace&>(any);
  const int64_t width = params().hidden;
  const bool direct = run.out_type == HALFBYTE_MOE_F32_ROWS;
  const MatrixView<float> out{direct ? static_cast<float*>(run.out) : workspace.out.get(),
                              run.tokens, width};
  const Routing routing{{run.topk_ids, run.tokens, run.top_k},
                        {run.topk_weights, run.tokens, run.top_k}};
  MoeCounters counters;
  layer_.experts.Run(workspace.context, HiddenRows(workspace, run, width), routing, out,
                     workspace.memory, &counters);
  if (!direct) {
    auto* to = static_cast<Bf16*>(run.out);
    ConvertElements(workspace, run.tokens * width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = ToBf16(out.data[i]);
    });
  }
  const std::lock_guard lock(mutex_);
  counters_.gate_up += counters.gate_up;
  counters_.down += counters.down;
  return HALFBYTE_MOE_OK;
}

Status CpuBackend::CheckTokenIds(const halfbyte_moe_route_arguments& route) const {
  const int64_t vocabulary = layer_.routing.vocabulary();
  for (int64_t t = 0; t < route.tokens; ++t) {
    if (route.token_ids[t] < 0 || route.token_ids[t] >= vocabulary) {
      return MakeError("token_ids[{}]: {} is outside 0..{}", t, route.token_ids[t], vocabulary - 1);
    }
  }
  return {};
}

Result<int> CpuBackend::Route(Workspace& any, const halfbyte_moe_route_arguments& route) const {
  const bool by_id = layer_.routing.by_token_id();
  if (by_id) HB_RETURN_IF_ERROR(CheckTokenIds(route));
  const RouterParams& router = layer_.routing.params;
  const MatrixView<const float> logits{route.logits, route.tokens, router.experts};
  const MutableRouting routing{{route.topk_ids, route.tokens, router.top_k},
                               {route.topk_weights, route.tokens, router.top_k}};
  // Token ids are read, and have been checked, only where there is a table.
  const size_t ids = by_id ? static_cast<size_t>(route.tokens) : 0;
  const RouterCounters counters = layer_.routing.Route(static_cast<CpuWorkspace&>(any).context,
                                                       logits, {route.token_ids, ids}, routing);
  const std::lock_guard lock(mutex_);
  router_counters_.rows += counters.rows;
  router_counters_.bad_rows += counters.bad_rows;
  return HALFBYTE_MOE_OK;
}

Result<halfbyte_moe_counters> CpuBackend::ReadCounters() const {
  const std::lock_guard lock(mutex_);
  return halfbyte_moe_counters{.gate_up = StageCounters(counters_.gate_up),
                               .down = StageCounters(counters_.down),
                               .routed_rows = router_counters_.rows,
                               .bad_rows = router_counters_.bad_rows};
}

}  // namespace

Result<std::unique_ptr<MoeBackend>> CreateCpuBackend(RoutedLayerParts parts,
                                                     const LayerOptions& options) {
  ThreadPool pool(options.threads);
  HB_ASSIGN_OR_RETURN(RoutedLayer layer, RoutedLayer::Create(std::move(parts), pool));
  return std::make_unique<CpuBackend>(std::move(layer), options.threads);
}

}  // namespace halfbyte
