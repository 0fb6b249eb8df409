// Everything a call needs lies in GPU memory when the layer and the workspace have been made.
#include "moe/cuda/cuda_expert_layer.h"

#include <string_view>
#include <utility>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "kernels/route/cuda_router.h"
#include "moe/cuda/cuda_moe_layer.h"

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
struct CudaWorkspace : ExpertLayer::Workspace {
  explicit CudaWorkspace(int ordinal_in) : ordinal(ordinal_in) {}

  const int ordinal;
  CudaMoeWorkspace memory;
  CudaEvent done;  // of the last call that was not captured
  cudaStream_t stream = nullptr;

  // A captured call does nothing yet.
  Result<bool> IsBusyFor(void* other) const override {
    HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal));
    if (other == stream || IsCapturing(static_cast<cudaStream_t>(other))) return false;
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

class CudaExpertLayer : public ExpertLayer {
 public:
  static Result<std::unique_ptr<ExpertLayer>> Create(const CudaDevice& device,
                                                     RoutedLayerParts parts);

  const MoeParams& params() const override { return layer_.params(); }
  const ExpertPlacement& placement() const override { return layer_.placement(); }
  const RoutingRule& routing() const override { return routing_; }
  ExpertLayerMemory memory() const override {
    const int64_t beside = bias_.bytes() + table_.bytes() + counters_.bytes();
    return {.weight_bytes = weight_bytes_,
            .device_bytes = layer_.device_bytes() + beside,
            .peak_device_bytes = layer_.peak_device_bytes() + beside};
  }

  int64_t WorkspaceBytes(const MoeLimits& limits) const override {
    return CudaMoeWorkspace::Bytes(layer_.kernels(), limits);
  }
  Result<std::unique_ptr<Workspace>> CreateWorkspace(const MoeLimits& limits) const override;
  Status Run(Workspace& workspace, const ExpertCall& call) const override;
  Status Route(Workspace& workspace, const RouteCall& call) const override;
  Result<ExpertLayerCounters> ReadCounters() const override;

 private:
  CudaExpertLayer(int ordinal, CudaMoeLayer layer, RoutingRule routing, int64_t weight_bytes)
      : ordinal_(ordinal),
        layer_(std::move(layer)),
        routing_(std::move(routing)),
        weight_bytes_(weight_bytes) {}

  Status UploadRouting();
  Status WarmUp() const;
  Status CheckPointers(const ExpertCall& call) const;
  Status CheckPointers(const RouteCall& call) const;

  int ordinal_;
  CudaMoeLayer layer_;
  RoutingRule routing_;
  int64_t weight_bytes_;
  DeviceBuffer bias_, table_;
  DeviceBuffer counters_;  // DeviceCounters
};

Result<std::unique_ptr<ExpertLayer>> CudaExpertLayer::Create(const CudaDevice& device,
                                                             RoutedLayerParts parts) {
  const int64_t weight_bytes = parts.weight_bytes();
  HB_ASSIGN_OR_RETURN(CudaMoeLayer layer,
                      CudaMoeLayer::Create(device, parts.params, std::move(parts.placement),
                                           parts.experts, parts.name, parts.release));
  std::unique_ptr<CudaExpertLayer> expert_layer(new CudaExpertLayer(
      device.ordinal, std::move(layer), std::move(parts.routing), weight_bytes));
  HB_RETURN_IF_ERROR(expert_layer->UploadRouting());
  HB_RETURN_IF_ERROR(expert_layer->WarmUp());
  return expert_layer;
}

// Kernels are loaded when they run for the first time: here, not in a caller's stream or capture.
// Nobody has a row in these calls.
Status CudaExpertLayer::WarmUp() const {
  constexpr int64_t kMostTokens = 64;
  const int64_t top_k = routing_.params.top_k, width = params().hidden;
  const MoeLimits limits{.tokens = kMostTokens,
                         .top_k = top_k,
                         .experts = placement().local_experts(),
                         .hidden = width,
                         .intermediate = params().intermediate};
  const auto allocate = [](int64_t bytes) { return DeviceBuffer::Allocate(bytes, "warming up"); };
  HB_ASSIGN_OR_RETURN(const CudaMoeWorkspace workspace,
                      CudaMoeWorkspace::Create(layer_.kernels(), limits));
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

Status CudaExpertLayer::UploadRouting() {
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

Result<std::unique_ptr<ExpertLayer::Workspace>> CudaExpertLayer::CreateWorkspace(
    const MoeLimits& limits) const {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  auto workspace = std::make_unique<CudaWorkspace>(ordinal_);
  HB_ASSIGN_OR_RETURN(workspace->memory, CudaMoeWorkspace::Create(layer_.kernels(), limits));
  HB_ASSIGN_OR_RETURN(workspace->done, CudaEvent::CreateUntimed());
  return workspace;
}

Status CudaExpertLayer::CheckPointers(const ExpertCall& call) const {
  if (call.hidden_type != RowType::kBf16)
    return MakeError("hidden_type: a GPU takes bf16 rows only");
  HB_RETURN_IF_ERROR(CheckDeviceMemory(call.hidden, "hidden", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(call.topk_ids, "topk_ids", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(call.topk_weights, "topk_weights", ordinal_));
  return CheckDeviceMemory(call.out, "out", ordinal_);
}

Status CudaExpertLayer::Run(Workspace& any, const ExpertCall& call) const {
  auto& workspace = static_cast<CudaWorkspace&>(any);
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  HB_RETURN_IF_ERROR(CheckPointers(call));
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const bool bf16 = call.out_type == RowType::kBf16;
  const CudaMoeCall on_device{.hidden = static_cast<const Bf16*>(call.hidden),
                              .topk_ids = call.topk_ids,
                              .topk_weights = call.topk_weights,
                              .tokens = call.tokens,
                              .top_k = call.top_k,
                              .out = call.out,
                              .output = bf16 ? CudaMoeOutput::kBf16 : CudaMoeOutput::kF32,
                              .counters = &counters_.as<DeviceCounters>()->layer};
  HB_RETURN_IF_ERROR(layer_.Run(stream, on_device, workspace.memory));
  HB_RETURN_IF_ERROR(workspace.NoteUse(stream));
  return {};
}

Status CudaExpertLayer::CheckPointers(const RouteCall& call) const {
  if (routing_.params.experts > kMaxRouterExperts) {
    return MakeError("a GPU routes to at most {} experts, the layer has {}", kMaxRouterExperts,
                     routing_.params.experts);
  }
  HB_RETURN_IF_ERROR(CheckDeviceMemory(call.logits, "logits", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(call.topk_ids, "topk_ids", ordinal_));
  HB_RETURN_IF_ERROR(CheckDeviceMemory(call.topk_weights, "topk_weights", ordinal_));
  if (!routing_.by_token_id()) return {};
  return CheckDeviceMemory(call.token_ids, "token_ids", ordinal_);
}

// Needs no workspace.
Status CudaExpertLayer::Route(Workspace&, const RouteCall& call) const {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  HB_RETURN_IF_ERROR(CheckPointers(call));
  const bool by_id = routing_.by_token_id();
  const RouterCallArguments on_device{.logits = call.logits,
                                      .tokens = call.tokens,
                                      .bias = bias_.as<float>(),
                                      .table = table_.as<int32_t>(),
                                      .token_ids = by_id ? call.token_ids : nullptr,
                                      .table_rows = by_id ? routing_.vocabulary() : 0,
                                      .topk_ids = call.topk_ids,
                                      .topk_weights = call.topk_weights,
                                      .counters = &counters_.as<DeviceCounters>()->router};
  HB_RETURN_IF_ERROR(CudaStatus(
      LaunchRouter(routing_.params, on_device, static_cast<cudaStream_t>(call.stream)), "router"));
  return {};
}

Result<ExpertLayerCounters> CudaExpertLayer::ReadCounters() const {
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(ordinal_));
  HB_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "work on the GPU"));
  DeviceCounters read;
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(&read, counters_.data(), sizeof(read), cudaMemcpyDeviceToHost), "counters"));
  const MoeCounters layer = HostCounters(read.layer);
  return ExpertLayerCounters{.gate_up = layer.gate_up,
                             .down = layer.down,
                             .router = {.rows = static_cast<int64_t>(read.router.rows),
                                        .bad_rows = static_cast<int64_t>(read.router.bad_rows)}};
}

}  // namespace

Status CheckGpu(int32_t ordinal) {
  HB_ASSIGN_OR_RETURN(const CudaDevice found, CudaDevice::Find(ordinal));
  return {};
}

Result<std::unique_ptr<ExpertLayer>> CreateCudaExpertLayer(RoutedLayerParts parts,
                                                           int32_t ordinal) {
  HB_ASSIGN_OR_RETURN(const CudaDevice device, CudaDevice::Find(ordinal));
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(device.ordinal));
  return CudaExpertLayer::Create(device, std::move(parts));
}

}  // namespace halfbyte
