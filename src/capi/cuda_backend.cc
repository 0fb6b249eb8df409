// Layers of the C interface on a GPU. Everything a call needs lies in GPU memory when the layer and
// the workspace have been made.
#include <bit>

#include "capi/last_error.h"
#include "capi/moe_backend.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "moe/cuda/cuda_moe_layer.h"
#include "moe/cuda/cuda_router.h"

namespace halfbyte {
namespace {

// What calls add to.
struct DeviceCounters {
  CudaMoeCounters layer;
  CudaRouterCounters router;
};

bool IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

// The memory, and which stream's work may still be using it.
struct CudaWorkspace : MoeBackend::Workspace {
  CudaMoeWorkspace memory;
  CudaEvent done;  // of the last call that was not captured
  cudaStream_t stream = nullptr;

  // Whether another stream is at work here. A captured call does nothing yet.
  Result<bool> IsBusyFor(cudaStream_t other) const {
    if (other == stream || IsCapturing(other)) return false;
    HB_ASSIGN_OR_RETURN(const bool idle, done.IsDone());
    return !idle;
  }
  Status NoteUse(cudaStream_t user) {
    if (IsCapturing(user)) return {};
    stream = user;
    return done.Record(user);
  }
};

// Memory that a kernel on this GPU can use: its own, or host memory that CUDA knows.
Status CheckDeviceMemory(const void* pointer, std::string_view name, int ordinal) {
  cudaPointerAttributes attributes;
  HB_RETURN_IF_ERROR(CudaStatus(cudaPointerGetAttributes(&attributes, pointer), name));
  if (attributes.type == cudaMemoryTypeUnregistered) {
    return MakeError("{} is host memory, where the layer on GPU {} needs memory of that GPU", name,
                     ordinal);
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != ordinal) {
    return MakeError("{} is memory of GPU {}, but the layer is on GPU {}", name, attributes.device,
                     ordinal);
  }
  return {};
}

halfbyte_moe_stage_counters StageCounters(const Nvfp4DeviceStats& stats) {
  return {.blocks = static_cast<int64_t>(stats.blocks),
          .zero = static_cast<int64_t>(stats.zero),
          .flushed = static_cast<int64_t>(stats.flushed),
          .at_max = static_cast<int64_t>(stats.at_max),
          .clipped = static_cast<int64_t>(stats.clipped),
          .non_finite = static_cast<int64_t>(stats.non_finite),
          .amax = std::bit_cast<float>(stats.amax_bits)};
}

class CudaBackend : public MoeBackend {
 public:
  static Result<std::unique_ptr<MoeBackend>> Create(const CudaDevice& device,
                                                    RoutedLayerParts parts);

  const MoeParams& params() const override { return layer_.params(); }
  const ExpertPlacement& placement() const override { return layer_.placement(); }
  const RoutingRule& routing() const override { return routing_; }
  BackendMemory memory() const override {
    const int64_t beside = bias_.bytes() + table_.bytes() + counters_.bytes();
    return {.weight_bytes = weight_bytes_,
            .device_bytes = layer_.device_bytes() + beside,
            .peak_device_bytes = layer_.peak_device_bytes() + beside};
  }

  uint64_t WorkspaceBytes(const MoeLimits& limits) const override {
    return static_cast<uint64_t>(CudaMoeWorkspace::Bytes(limits));
  }
  Result<std::unique_ptr<Workspace>> CreateWorkspace(const MoeLimits& limits) const override;
  Result<int> Run(Workspace& workspace, const halfbyte_moe_run_arguments& run) const override;
  Result<int> Route(Workspace& workspace, const halfbyte_moe_route_arguments& route) const override;
  Result<halfbyte_moe_counters> ReadCounters() const override;

 private:
  CudaBackend(int ordinal, CudaMoeLayer layer, RoutingRule routing, int64_t weight_bytes)
      : ordinal_(ordinal),
        layer_(std::move(layer)),
        routing_(std::move(routing)),
        weight_bytes_(weight_bytes) {}

  Status UploadRouting();
  Status WarmUp() const;
  Status CheckPointers(const halfbyte_moe_run_arguments& run) const;
  Status CheckPointers(const halfbyte_moe_route_arguments& route) const;

  int ordinal_;
  CudaMoeLayer layer_;
  RoutingRule routing_;
  int64_t weight_bytes_;
  DeviceBuffer bias_, table_;
  DeviceBuffer counters_;  // DeviceCounters
};

Result<std::unique_ptr<MoeBackend>> CudaBackend::Create(const CudaDevice& device,
                                                        RoutedLayerParts parts) {
  int64_t weight_bytes = 0;
  for (const ExpertWeights& e : parts.experts) {
    weight_bytes += e.gate.bytes() + e.up.bytes() + e.down.bytes();
  }
  HB_ASSIGN_OR_RETURN(CudaMoeLayer layer,
                      CudaMoeLayer::Create(device, parts.params, std::move(parts.placement),
                                           parts.experts, parts.name, parts.release));
  std::unique_ptr<CudaBackend> backend(
      new CudaBackend(device.ordinal, std::move(layer), std::move(parts.routing), weight_bytes));
  HB_RETURN_IF_ERROR(backend->UploadRouting());
  HB_RETURN_IF_ERROR(backend->WarmUp());
  return backend;
}

// Kernels are loaded when they run for the first time: here, not in a caller's stream or capture.
// Nobody has a row in these calls.
Status CudaBackend::WarmUp() const {
  constexpr int64_t kMostTokens = 64;
  const int64_t top_k = routing_.params.top_k, width = params().hidden;
  const MoeLimits limits{.tokens = kMostTokens,
                         .top_k = top_k,
                         .experts = placement().local_experts(),
                         .hidden = width,
                         .intermediate = params().intermediate};
  const auto allocate = [](int64_t bytes) { return DeviceBuffer::Allocate(bytes, "warming up"); };
  HB_ASSIGN_OR_RETURN(const CudaMoeWorkspace workspace, CudaMoeWorkspace::Create(limits));
  HB_ASSIGN_OR_RETURN(const DeviceBuffer rows, allocate(2 * kMostTokens * width * 4));
  HB_ASSIGN_OR_RETURN(const DeviceBuffer ids, allocate(kMostTokens * top_k * 4));
  HB_ASSIGN_OR_RETURN(const DeviceBuffer weights, allocate(kMostTokens * top_k * 4));
  HB_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Create());
  for (const DeviceBuffer* buffer : {&rows, &ids, &weights}) {
    const auto bytes = static_cast<size_t>(buffer->bytes());
    const int value = buffer == &ids ? 0xff : 0;  // -1: no expert
    HB_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(buffer->data(), value, bytes, stream.get()), "warming up"));
  }
  for (const int64_t tokens : {int64_t{1}, kMostTokens}) {
    HB_RETURN_IF_ERROR(layer_.Run(stream.get(),
                                  {.hidden = rows.as<Bf16>(),
                                   .topk_ids = ids.as<int32_t>(),
                                   .topk_weights = weights.as<float>(),
                                   .tokens = tokens,
                                   .top_k = top_k,
                                   .out = rows.data() + kMostTokens * width * 4},
                                  workspace));
  }
  return stream.Synchronize();
}

Status CudaBackend::UploadRouting() {
  const auto upload = [](const auto& values, std::string_view what) {
    return DeviceBuffer::Upload(values.data(), std::ssize(values) * int64_t{sizeof(values[0])},
                                what);
  };
  HB_ASSIGN_OR_RETURN(bias_, upload(routing_.bias, "router bias"));
  HB_ASSIGN_OR_RETURN(table_, upload(routing_.table, "router table"));
  const DeviceCounters zeros;
  HB_ASSIGN_OR_RETURN(counters_, DeviceBuffer::Upload(&zeros, sizeof(zeros), "counters"));
  return {};
}

Result<std::unique_ptr<MoeBackend::Workspace>> CudaBackend::CreateWorkspace(
    const MoeLimits& limits) const {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  auto workspace = std::make_unique<CudaWorkspace>();
  HB_ASSIGN_OR_RETURN(workspace->memory, CudaMoeWorkspace::Create(limits));
  HB_ASSIGN_OR_RETURN(workspace->done, CudaEvent::CreateUntimed());
  return workspace;
}

Status CudaBackend::CheckPointers(const halfbyte_moe_run_arguments& run) const {
  if (run.hidden_type != HALFBYTE_MOE_BF16_ROWS) {
    return MakeError("hidden_type: a GPU takes HALFBYTE_MOE_BF16_ROWS only");
  }
  HB_RETURN_IF_ERROR(CheckDeviceMemory(run.hidden, "hidden", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(run.topk_ids, "topk_ids", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(run.topk_weights, "topk_weights", ordinal_));
  return CheckDeviceMemory(run.out, "out", ordinal_);
}

Result<int> CudaBackend::Run(Workspace& any, const halfbyte_moe_run_arguments& run) const {
  auto& workspace = static_cast<CudaWorkspace&>(any);
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  HB_RETURN_IF_ERROR(CheckPointers(run));
  const auto stream = static_cast<cudaStream_t>(run.stream);
  HB_ASSIGN_OR_RETURN(const bool busy, workspace.IsBusyFor(stream));
  if (busy) {
    return Fail(HALFBYTE_MOE_BUSY,
                "the workspace is in use by work in another stream; wait for that, or give every "
                "stream a workspace of its own");
  }
  const bool bf16 = run.out_type == HALFBYTE_MOE_BF16_ROWS;
  const CudaMoeCall call{.hidden = static_cast<const Bf16*>(run.hidden),
                         .topk_ids = run.topk_ids,
                         .topk_weights = run.topk_weights,
                         .tokens = run.tokens,
                         .top_k = run.top_k,
                         .out = run.out,
                         .output = bf16 ? CudaMoeOutput::kBf16 : CudaMoeOutput::kF32,
                         .counters = &counters_.as<DeviceCounters>()->layer};
  HB_RETURN_IF_ERROR(layer_.Run(stream, call, workspace.memory));
  HB_RETURN_IF_ERROR(workspace.NoteUse(stream));
  return HALFBYTE_MOE_OK;
}

Status CudaBackend::CheckPointers(const halfbyte_moe_route_arguments& route) const {
  if (routing_.params.experts > kMaxRouterExperts) {
    return MakeError("a GPU routes to at most {} experts, the layer has {}", kMaxRouterExperts,
                     routing_.params.experts);
  }
  HB_RETURN_IF_ERROR(CheckDeviceMemory(route.logits, "logits", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(route.topk_ids, "topk_ids", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(route.topk_weights, "topk_weights", ordinal_));
  if (!routing_.by_token_id()) return {};
  return CheckDeviceMemory(route.token_ids, "token_ids", ordinal_);
}

// Needs no workspace.
Result<int> CudaBackend::Route(Workspace&, const halfbyte_moe_route_arguments& route) const {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  HB_RETURN_IF_ERROR(CheckPointers(route));
  const bool by_id = routing_.by_token_id();
  const RouterCallArguments call{.logits = route.logits,
                                 .tokens = route.tokens,
                                 .bias = bias_.as<float>(),
                                 .table = table_.as<int32_t>(),
                                 .token_ids = by_id ? route.token_ids : nullptr,
                                 .table_rows = by_id ? routing_.vocabulary() : 0,
                                 .topk_ids = route.topk_ids,
                                 .topk_weights = route.topk_weights,
                                 .counters = &counters_.as<DeviceCounters>()->router};
  HB_RETURN_IF_ERROR(CudaStatus(
      LaunchRouter(routing_.params, call, static_cast<cudaStream_t>(route.stream)), "router"));
  return HALFBYTE_MOE_OK;
}

Result<halfbyte_moe_counters> CudaBackend::ReadCounters() const {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  HB_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "work on the GPU"));
  DeviceCounters read;
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(&read, counters_.data(), sizeof(read), cudaMemcpyDeviceToHost), "counters"));
  return halfbyte_moe_counters{.gate_up = StageCounters(read.layer.gate_up),
                               .down = StageCounters(read.layer.down),
                               .routed_rows = static_cast<int64_t>(read.router.rows),
                               .bad_rows = static_cast<int64_t>(read.router.bad_rows)};
}

}  // namespace

Status CheckCudaDevice(int32_t ordinal) {
  HB_ASSIGN_OR_RETURN(const CudaDevice found, CudaDevice::Find(ordinal));
  return {};
}

Result<std::unique_ptr<MoeBackend>> CreateCudaBackend(RoutedLayerParts parts,
                                                      const LayerOptions& options) {
  HB_ASSIGN_OR_RETURN(const CudaDevice device, CudaDevice::Find(*options.gpu));
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(device.ordinal));
  return CudaBackend::Create(device, std::move(parts));
}

}  // namespace halfbyte
