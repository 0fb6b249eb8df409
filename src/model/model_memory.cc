#include "model/model_memory.h"

#include <algorithm>
#include <utility>

#include "checkpoint/inventory.h"
#include "kernels/packed_linear/packed_linear.h"
#include "moe/expert_placement.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
// Touched stacks, scratch of attention and indexer, and a heap of each thread's own.
constexpr int64_t kThreadBytes = int64_t{3} << 20;
// Page tables, the heap of what is no large piece, buffers of files.
constexpr int64_t kProgramBytes = int64_t{6} << 20;

bool IsHyperConnection(Module module) {
  return module == Module::kHcHeadFn || module == Module::kHcAttentionFn ||
         module == Module::kHcFfnFn;
}

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

int64_t StepArenaBytes(const ModelConfig& c, int64_t tokens) {
  const int64_t n = c.hc_streams;
  const int64_t heads_dim = c.attention_heads * c.head_dim;
  const int64_t index_dim = c.index_heads * c.index_head_dim;
  const int64_t out_rank = c.o_groups * c.o_lora_rank;
  const auto operand = [](int64_t columns) { return MaxOperandRowBytes(columns); };
  // Floats of a token: what the whole step holds, what a layer does, and of its attention and its
  // experts the larger.
  const int64_t step = (n + 1) * c.hidden_size + (2 + n) * n + n * n + 2 * n;
  const int64_t layer = 2 * c.hidden_size + 2 * c.experts_per_token;
  const int64_t projected =
      c.head_dim + c.q_lora_rank + 4 * c.head_dim + 4 * c.index_head_dim + c.index_heads;
  const int64_t attention = projected + 2 * heads_dim + index_dim + c.index_topk + 1 + out_rank;
  const int64_t experts = c.routed_experts + c.hidden_size;
  const int64_t operands = std::max(
      {operand(c.hidden_size), operand(c.q_lora_rank), operand(heads_dim), operand(out_rank)});
  const int64_t floats = step + layer + std::max(attention, experts) + c.hidden_size + n;
  // Every piece begins at a multiple of 64 bytes; there are some thirty.
  return tokens * (floats * int64_t{sizeof(float)} + operands) + 32 * 64;
}

Result<MemoryPlan> PlanModel(const ModelCheckpoint& checkpoint, const TransformerOptions& options,
                             int threads) {
  const ModelConfig& config = checkpoint.config();
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
    // Read where they are stored, a row or a block at a time.
    const bool in_place = key.module == Module::kEmbed || IsHyperConnection(key.module);
    if (in_place || !PacksWeights(options)) continue;
    if (key.expert != kNoExpert && !placement.ToLocal(key.expert)) continue;
    HB_ASSIGN_OR_RETURN(const StoredWeight stored, checkpoint.FindWeight(key));
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

}  // namespace halfbyte
