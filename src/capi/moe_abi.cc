// The functions of include/halfbyte/moe.h: check, then ask the layer. The contract stands
// there.
#include <optional>
#include <string>

#include "capi/last_error.h"
#include "capi/moe_handles.h"
#include "capi/versioned_struct.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

using Layer = halfbyte_moe_layer;
using Workspace = halfbyte_moe_workspace;

// sizeof of each struct in version 1 of the ABI.
constexpr size_t kWeightsFirst = 112;
constexpr size_t kInfoFirst = 80;
constexpr size_t kRunFirst = 64;
constexpr size_t kRouteFirst = 48;
constexpr size_t kCountersFirst = 136;

constexpr int64_t kMaxTokens = 1 << 24;
constexpr __int128 kMaxElements = __int128{1} << 44;  // of the largest buffer

Status CheckProcessor() {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {};
  return MakeError("this processor lacks AVX2 and FMA, which halfbyte needs");
}

Status NotNull(const void* pointer, std::string_view name) {
  if (pointer != nullptr) return {};
  return MakeError("{} is NULL", name);
}

// A buffer of `bytes` bytes whose elements have `size` bytes each.
Status CheckBuffer(const void* pointer, int64_t bytes, uintptr_t size, std::string_view name) {
  if (bytes == 0) return {};
  HB_RETURN_IF_ERROR(NotNull(pointer, name));
  if (reinterpret_cast<uintptr_t>(pointer) % size != 0) {
    return MakeError("{} is not aligned to {} bytes", name, size);
  }
  return {};
}

// The only user of a workspace while it lives.
class Claim {
 public:
  explicit Claim(Workspace& workspace) : workspace_(workspace) {
    owned_ = !workspace.in_use.exchange(true, std::memory_order_acquire);
  }
  ~Claim() {
    if (owned_) workspace_.in_use.store(false, std::memory_order_release);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  explicit operator bool() const { return owned_; }

 private:
  Workspace& workspace_;
  bool owned_;
};

int FailBusy() {
  return Fail(HALFBYTE_MOE_BUSY,
              "the workspace is in use by another call; give every thread a workspace of its own");
}

Result<MoeLimits> LimitsOf(const Layer& layer, int64_t max_tokens) {
  if (max_tokens < 1 || max_tokens > kMaxTokens) {
    return MakeError("max_tokens: {} is outside 1..{}", max_tokens, kMaxTokens);
  }
  const MoeParams& params = layer.experts->params();
  const MoeLimits limits{.tokens = max_tokens,
                         .top_k = layer.experts->routing().params.top_k,
                         .experts = layer.experts->placement().local_experts(),
                         .hidden = params.hidden,
                         .intermediate = params.intermediate};
  const int64_t width = std::max(params.hidden, params.intermediate);
  if (__int128{limits.slots()} * width > kMaxElements) {
    return MakeError("max_tokens: {} tokens with {} choices of {} elements each are too many",
                     max_tokens, limits.top_k, width);
  }
  return limits;
}

std::string DeviceName(std::optional<int32_t> gpu) {
  return gpu ? fmt::format("GPU {}", *gpu) : "the CPU";
}

Status CheckDevice(const Layer& layer, const Workspace& workspace) {
  if (layer.gpu == workspace.gpu) return {};
  return MakeError("the layer is on {}, but the workspace on {}", DeviceName(layer.gpu),
                   DeviceName(workspace.gpu));
}

Status CheckFits(const Layer& layer, const Workspace& workspace) {
  HB_RETURN_IF_ERROR(CheckDevice(layer, workspace));
  const MoeLimits& limits = workspace.limits;
  const MoeParams& params = layer.experts->params();
  const int32_t experts = layer.experts->placement().local_experts();
  if (experts <= limits.experts && params.hidden <= limits.hidden &&
      params.intermediate <= limits.intermediate) {
    return {};
  }
  return MakeError(
      "the workspace is for layers of up to {} experts [{}, {}], but this one has {} [{}, {}]",
      limits.experts, limits.hidden, limits.intermediate, experts, params.hidden,
      params.intermediate);
}

Result<int64_t> RowBytes(int32_t type, int64_t width, std::string_view name) {
  if (type == HALFBYTE_MOE_BF16_ROWS) return width * int64_t{sizeof(Bf16)};
  if (type == HALFBYTE_MOE_F32_ROWS) return width * int64_t{sizeof(float)};
  return MakeError("{}: {} is neither HALFBYTE_MOE_BF16_ROWS nor HALFBYTE_MOE_F32_ROWS", name,
                   type);
}

// Of a type that RowBytes knows.
RowType RowTypeOf(int32_t type) {
  return type == HALFBYTE_MOE_BF16_ROWS ? RowType::kBf16 : RowType::kF32;
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

Status CheckRun(const Layer& layer, const Workspace& workspace,
                const halfbyte_moe_run_arguments& run) {
  HB_RETURN_IF_ERROR(CheckFits(layer, workspace));
  const int64_t most_tokens = workspace.limits.tokens;
  if (run.tokens < 0 || run.tokens > most_tokens) {
    return MakeError("tokens: {}, but the workspace takes 0..{}", run.tokens, most_tokens);
  }
  const int64_t most_choices =
      std::min(layer.experts->routing().params.top_k, workspace.limits.top_k);
  if (run.top_k < 1 || run.top_k > most_choices) {
    return MakeError("top_k: {} is outside 1..{}", run.top_k, most_choices);
  }
  const int64_t width = layer.experts->params().hidden;
  HB_ASSIGN_OR_RETURN(const int64_t hidden_row, RowBytes(run.hidden_type, width, "hidden_type"));
  HB_ASSIGN_OR_RETURN(const int64_t out_row, RowBytes(run.out_type, width, "out_type"));
  const int64_t hidden_bytes = run.tokens * hidden_row;
  const int64_t out_bytes = run.tokens * out_row;
  const int64_t choices = run.tokens * run.top_k;
  const auto size = [&](int64_t row) { return static_cast<uintptr_t>(row / width); };
  HB_RETURN_IF_ERROR(CheckBuffer(run.hidden, hidden_bytes, size(hidden_row), "hidden"));
  HB_RETURN_IF_ERROR(CheckBuffer(run.out, out_bytes, size(out_row), "out"));
  HB_RETURN_IF_ERROR(CheckBuffer(run.topk_ids, choices * 4, alignof(int32_t), "topk_ids"));
  HB_RETURN_IF_ERROR(CheckBuffer(run.topk_weights, choices * 4, alignof(float), "topk_weights"));
  const auto hidden = reinterpret_cast<uintptr_t>(run.hidden);
  const auto out = reinterpret_cast<uintptr_t>(run.out);
  if (hidden < out + static_cast<uintptr_t>(out_bytes) &&
      out < hidden + static_cast<uintptr_t>(hidden_bytes)) {
    return MakeError("out overlaps hidden");
  }
  return {};
}

Status CheckRoute(const Layer& layer, const Workspace& workspace,
                  const halfbyte_moe_route_arguments& route) {
  HB_RETURN_IF_ERROR(CheckDevice(layer, workspace));
  if (route.tokens < 0 || route.tokens > kMaxTokens) {
    return MakeError("tokens: {} is outside 0..{}", route.tokens, kMaxTokens);
  }
  const RoutingRule& rule = layer.experts->routing();
  const int64_t n = route.tokens;
  const int64_t choices = n * rule.params.top_k;
  HB_RETURN_IF_ERROR(CheckBuffer(route.logits, n * rule.params.experts, alignof(float), "logits"));
  HB_RETURN_IF_ERROR(CheckBuffer(route.topk_ids, choices, alignof(int32_t), "topk_ids"));
  HB_RETURN_IF_ERROR(CheckBuffer(route.topk_weights, choices, alignof(float), "topk_weights"));
  if (!rule.by_token_id()) return {};
  return CheckBuffer(route.token_ids, n, alignof(int32_t), "token_ids");
}

// Gives the caller what `load` makes, or NULL and the error.
template <class Handle, class Load>
int Create(Handle** out, const Load& load) {
  return Guarded([&]() -> Result<int> {
    HB_RETURN_IF_ERROR(NotNull(out, "out"));
    *out = nullptr;
    HB_RETURN_IF_ERROR(CheckProcessor());
    HB_ASSIGN_OR_RETURN(std::unique_ptr<Handle> handle, load());
    *out = handle.release();
    return HALFBYTE_MOE_OK;
  });
}

}  // namespace
}  // namespace halfbyte

using namespace halfbyte;  // NOLINT: what follows stands outside of any namespace

uint32_t halfbyte_moe_abi_version() { return HALFBYTE_MOE_ABI_VERSION; }

const char* halfbyte_moe_last_error() { return LastError(); }

int halfbyte_moe_layer_open(const char* directory, int64_t layer,
                            const halfbyte_moe_options* options, halfbyte_moe_layer** out) {
  return Create(out, [&]() -> Result<std::unique_ptr<Layer>> {
    HB_RETURN_IF_ERROR(NotNull(directory, "directory"));
    HB_ASSIGN_OR_RETURN(const LayerOptions read, ReadLayerOptions(options));
    return LayerFromCheckpoint(directory, layer, read);
  });
}

int halfbyte_moe_layer_create(const halfbyte_moe_weights* weights,
                              const halfbyte_moe_options* options, halfbyte_moe_layer** out) {
  return Create(out, [&]() -> Result<std::unique_ptr<Layer>> {
    HB_ASSIGN_OR_RETURN(const auto read, ReadStruct(weights, kWeightsFirst, "weights"));
    HB_ASSIGN_OR_RETURN(const LayerOptions read_options, ReadLayerOptions(options));
    return LayerFromTensors(read, read_options);
  });
}

int halfbyte_moe_layer_describe(const halfbyte_moe_layer* layer, halfbyte_moe_info* info) {
  return Guarded([&]() -> Result<int> {
    HB_RETURN_IF_ERROR(NotNull(layer, "layer"));
    const MoeParams& params = layer->experts->params();
    const ExpertPlacement& placement = layer->experts->placement();
    const RoutingRule& routing = layer->experts->routing();
    const ExpertLayerMemory memory = layer->experts->memory();
    const halfbyte_moe_info known{.experts = placement.experts(),
                                  .local_experts = placement.local_experts(),
                                  .hidden = params.hidden,
                                  .intermediate = params.intermediate,
                                  .top_k = routing.params.top_k,
                                  .weight_bytes = memory.weight_bytes,
                                  .arithmetic = ArithmeticName(params.arithmetic).data(),
                                  .threads = layer->threads,
                                  .static_scales = params.gate_up_input_scale.has_value(),
                                  .routes_by_token_id = routing.by_token_id(),
                                  .device = layer->gpu ? HALFBYTE_MOE_CUDA : HALFBYTE_MOE_CPU,
                                  .device_ordinal = layer->gpu.value_or(0),
                                  .device_bytes = memory.device_bytes,
                                  .peak_device_bytes = memory.peak_device_bytes};
    HB_RETURN_IF_ERROR(WriteStruct(known, kInfoFirst, info, "info"));
    return HALFBYTE_MOE_OK;
  });
}

void halfbyte_moe_layer_destroy(halfbyte_moe_layer* layer) { delete layer; }

int halfbyte_moe_workspace_bytes(const halfbyte_moe_layer* layer, int64_t max_tokens,
                                 uint64_t* bytes) {
  return Guarded([&]() -> Result<int> {
    HB_RETURN_IF_ERROR(NotNull(layer, "layer"));
    HB_RETURN_IF_ERROR(NotNull(bytes, "bytes"));
    HB_ASSIGN_OR_RETURN(const MoeLimits limits, LimitsOf(*layer, max_tokens));
    *bytes = static_cast<uint64_t>(layer->experts->WorkspaceBytes(limits));
    return HALFBYTE_MOE_OK;
  });
}

int halfbyte_moe_workspace_create(const halfbyte_moe_layer* layer, int64_t max_tokens,
                                  halfbyte_moe_workspace** out) {
  return Create(out, [&]() -> Result<std::unique_ptr<Workspace>> {
    HB_RETURN_IF_ERROR(NotNull(layer, "layer"));
    HB_ASSIGN_OR_RETURN(const MoeLimits limits, LimitsOf(*layer, max_tokens));
    auto workspace = std::make_unique<Workspace>();
    workspace->gpu = layer->gpu;
    workspace->limits = limits;
    HB_ASSIGN_OR_RETURN(workspace->memory, layer->experts->CreateWorkspace(limits));
    return workspace;
  });
}

void halfbyte_moe_workspace_destroy(halfbyte_moe_workspace* workspace) { delete workspace; }

int halfbyte_moe_run(const halfbyte_moe_layer* layer, halfbyte_moe_workspace* workspace,
                     const halfbyte_moe_run_arguments* arguments) {
  return Guarded([&]() -> Result<int> {
    HB_RETURN_IF_ERROR(NotNull(layer, "layer"));
    HB_RETURN_IF_ERROR(NotNull(workspace, "workspace"));
    HB_ASSIGN_OR_RETURN(const auto run, ReadStruct(arguments, kRunFirst, "arguments"));
    const Claim claim(*workspace);
    if (!claim) return FailBusy();
    HB_RETURN_IF_ERROR(CheckRun(*layer, *workspace, run));
    if (run.tokens == 0) return HALFBYTE_MOE_OK;
    HB_ASSIGN_OR_RETURN(const bool busy, workspace->memory->IsBusyFor(run.stream));
    if (busy) {
      return Fail(HALFBYTE_MOE_BUSY,
                  "the workspace is in use by work in another stream; wait for that, or give every "
                  "stream a workspace of its own");
    }
    HB_RETURN_IF_ERROR(
        layer->experts->Run(*workspace->memory, {.hidden = run.hidden,
                                                 .hidden_type = RowTypeOf(run.hidden_type),
                                                 .topk_ids = run.topk_ids,
                                                 .topk_weights = run.topk_weights,
                                                 .tokens = run.tokens,
                                                 .top_k = run.top_k,
                                                 .out = run.out,
                                                 .out_type = RowTypeOf(run.out_type),
                                                 .stream = run.stream}));
    return HALFBYTE_MOE_OK;
  });
}

int halfbyte_moe_route(const halfbyte_moe_layer* layer, halfbyte_moe_workspace* workspace,
                       const halfbyte_moe_route_arguments* arguments) {
  return Guarded([&]() -> Result<int> {
    HB_RETURN_IF_ERROR(NotNull(layer, "layer"));
    HB_RETURN_IF_ERROR(NotNull(workspace, "workspace"));
    HB_ASSIGN_OR_RETURN(const auto route, ReadStruct(arguments, kRouteFirst, "arguments"));
    const Claim claim(*workspace);
    if (!claim) return FailBusy();
    HB_RETURN_IF_ERROR(CheckRoute(*layer, *workspace, route));
    if (route.tokens == 0) return HALFBYTE_MOE_OK;
    HB_RETURN_IF_ERROR(
        layer->experts->Route(*workspace->memory, {.logits = route.logits,
                                                   .token_ids = route.token_ids,
                                                   .tokens = route.tokens,
                                                   .topk_ids = route.topk_ids,
                                                   .topk_weights = route.topk_weights,
                                                   .stream = route.stream}));
    return HALFBYTE_MOE_OK;
  });
}

int halfbyte_moe_read_counters(const halfbyte_moe_layer* layer, halfbyte_moe_counters* counters) {
  return Guarded([&]() -> Result<int> {
    HB_RETURN_IF_ERROR(NotNull(layer, "layer"));
    HB_ASSIGN_OR_RETURN(const ExpertLayerCounters read, layer->experts->ReadCounters());
    const halfbyte_moe_counters known{.gate_up = StageCounters(read.gate_up),
                                      .down = StageCounters(read.down),
                                      .routed_rows = read.router.rows,
                                      .bad_rows = read.router.bad_rows};
    HB_RETURN_IF_ERROR(WriteStruct(known, kCountersFirst, counters, "counters"));
    return HALFBYTE_MOE_OK;
  });
}
