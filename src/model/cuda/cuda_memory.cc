// What a model takes of a GPU's memory.
#include <fmt/format.h>

#include <string>

#include "checkpoint/inventory.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/cuda_rope.h"
#include "model/cuda/cuda_step_memory.h"
#include "model/cuda/cuda_weights.h"
#include "model/cuda/load_cuda_model.h"
#include "moe/cuda/cuda_expert_upload.h"

namespace halfbyte {
namespace {

// Graphs, code of kernels, tables of steps.
constexpr int64_t kGpuProgramBytes = int64_t{256} << 20;

Status CheckOptions(const TransformerOptions& options) {
  if (options.math != MathMode::kDefault) {
    return MakeError("a GPU computes the default math only; leave out --math or --device");
  }
  if (options.arithmetic != Arithmetic::kW4a16 && options.arithmetic != Arithmetic::kW4a4) {
    return MakeError("a GPU computes the arithmetics w4a16 and w4a4 only");
  }
  if (options.reference_tokens != 0) {
    return MakeError("ties of index scores are broken as PyTorch breaks them on the CPU only");
  }
  if (options.communicator != nullptr && options.communicator->size() > 1) {
    return MakeError("a model on a GPU is not spread over ranks; run one process");
  }
  return {};
}

}  // namespace

Result<AvailableMemory> AvailableGpuMemory(int gpu, double part) {
  HB_ASSIGN_OR_RETURN(const CudaDevice device, CudaDevice::Find(gpu));
  HB_ASSIGN_OR_RETURN(const auto scope, CudaDeviceScope::Enter(device.ordinal));
  HB_ASSIGN_OR_RETURN(const CudaMemory memory, FreeCudaMemory());
  const std::string where = fmt::format("on GPU {} ({})", device.ordinal, device.name);
  const auto allowed = static_cast<int64_t>(part * static_cast<double>(memory.total_bytes));
  AvailableMemory available{.resident = MemoryBound{memory.free_bytes, where}};
  if (allowed < memory.free_bytes) {
    available.resident = {allowed, fmt::format("of --gpu-memory-utilization {} {}", part, where)};
  }
  return available;
}

Result<MemoryPlan> PlanCudaModel(const WeightSource& source, const TransformerOptions& options) {
  const ModelConfig& config = source.config();
  HB_RETURN_IF_ERROR(CheckOptions(options));
  HB_RETURN_IF_ERROR(CheckCudaShapes(config));
  HB_ASSIGN_OR_RETURN(const CudaDevice device, CudaDevice::Find(*options.gpu));
  HB_ASSIGN_OR_RETURN(const MoeKernels* const kernels, MoeKernelsOf(device));
  int64_t weights = config.layer_count() * config.routed_experts *
                        kernels->ExpertBytes(config.hidden_size, config.expert_size) +
                    StoredExpertBytes(config.hidden_size, config.expert_size);
  for (const ModuleKey& key : RequiredModules(config)) {
    if (IsRoutedExpert(key.module)) continue;
    if (!IsMatrix(key.module)) {
      weights += ElementCount(*ExpectedShape(config, key)) * int64_t{sizeof(float)};
      continue;
    }
    HB_ASSIGN_OR_RETURN(const StoredWeight stored, source.Unread(key));
    HB_ASSIGN_OR_RETURN(const int64_t bytes, CudaWeights::BytesOf(config, key, stored));
    weights += bytes;
  }
  const auto sizes = CudaStepMemory::SizesOf(config, *kernels, options.batch_tokens,
                                             config.max_position_embeddings);
  MemoryPlan plan;
  plan.Add("packed weights", weights);
  plan.Add(fmt::format("workspace of {} tokens", options.batch_tokens), sizes.bytes());
  plan.Add("rotary tables", CudaRope::Bytes(config, config.max_position_embeddings));
  plan.Add(fmt::format("logits of {} tokens", CudaLogitRows(options)),
           CudaLogitRows(options) * config.vocab_size * int64_t{sizeof(float)});
  plan.Add("program", kGpuProgramBytes);
  return plan;
}

}  // namespace halfbyte
