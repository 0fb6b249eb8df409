#include "model/model_memory.h"

#include <algorithm>
#include <utility>

#include "checkpoint/inventory.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/packed_linear/packed_linear.h"
#include "model/cpu/cpu_model.h"
#include "model/cuda/load_cuda_model.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
// Touched stacks, scratch of attention and indexer, and a heap of each thread's own.
constexpr int64_t kThreadBytes = int64_t{3} << 20;
// Page tables, the heap of what is no large piece, buffers of files.
constexpr int64_t kProgramBytes = int64_t{6} << 20;

// Pieces of packed weights as ZeroedMemory lays them out.
class PackedPieces {
 public:
  void Add(int64_t bytes) {
    if (bytes >= kHugePage) {
      large_ += RoundUp(bytes, kHugePage);
    } else {
      small_ += RoundUp(bytes, 4096);
    }
  }
  // Small ones share huge pages; what the next does not fit into stays empty.
  int64_t bytes() const { return large_ + RoundUp(small_ + small_ / 4, kHugePage); }

 private:
  int64_t large_ = 0;
  int64_t small_ = 0;
};

}  // namespace

Result<MemoryPlan> PlanModel(const WeightSource& source, const TransformerOptions& options,
                             int threads) {
  if (options.gpu) return PlanCudaModel(source, options);
  const ModelConfig& config = source.config();
  HB_ASSIGN_OR_RETURN(const ExpertPlacement placement, PlaceExperts(config, options));
  PackedPieces packed;
  int64_t vectors = 0, layer_experts = 0;
  int32_t layer = 0;
  const auto end_layer = [&] { packed.Add(std::exchange(layer_experts, 0)); };
  for (const ModuleKey& key : RequiredModules(config)) {
    if (!IsMatrix(key.module)) {
      vectors += ElementCount(*ExpectedShape(config, key)) * int64_t{sizeof(float)};
      continue;
    }
    if (IsReadInPlace(key.module) || !PacksWeights(options)) continue;
    if (key.expert != kNoExpert && !placement.ToLocal(key.expert)) continue;
    HB_ASSIGN_OR_RETURN(const StoredWeight stored, source.Unread(key));
    const int64_t bytes = PackedBytes(stored.matrix);
    if (key.expert == kNoExpert) {
      packed.Add(bytes);
      continue;
    }
    if (std::exchange(layer, key.layer) != key.layer) end_layer();
    layer_experts += bytes;
  }
  end_layer();
  const MoeLimits limits = MoeBlock::Limits(config, options.batch_tokens);
  const int64_t workspace =
      MoeWorkspace::Bytes(limits) + StepArenaBytes(config, options.batch_tokens);
  MemoryPlan plan;
  plan.Add("packed weights", packed.bytes());
  plan.Add("norms and tables", vectors);
  plan.Add(fmt::format("workspace of {} tokens", options.batch_tokens), workspace);
  plan.Add(fmt::format("logits of {} tokens", options.logit_rows),
           options.logit_rows * config.vocab_size * int64_t{sizeof(float)});
  plan.Add("program and threads", kProgramBytes + threads * kThreadBytes);
  return plan;
}

Result<AvailableMemory> AvailableTo(const TransformerOptions& options) {
  if (options.gpu) return AvailableGpuMemory(*options.gpu, options.gpu_memory);
  return ReadAvailableMemory();
}

}  // namespace halfbyte
