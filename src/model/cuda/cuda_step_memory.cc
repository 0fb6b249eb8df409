#include "model/cuda/cuda_step_memory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/hyper_connection/hyper_connection_cuda.h"
#include "kernels/indexer/indexer_cuda.h"
#include "model/program/deepseek_v4.h"
#include "model/program/recorded_program.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// A step written down, with what operations take of the arena besides rows, and the most that one
// launch of products keeps for itself.
class StepNeeds : public RecordedProgram {
 public:
  StepNeeds(const ModelConfig& config, const StepShape& step)
      : RecordedProgram(step, CudaElementBytes), config_(config), step_(step) {}

  int64_t dense_bytes() const { return dense_bytes_; }

  using RecordedProgram::Project;
  void Project(Rows x, std::span<const Product> products) override {
    std::vector<int64_t> rows;
    for (const Product& product : products) rows.push_back(product.y.columns);
    const int64_t groups = x.name == RowsName::kAttended ? config_.o_groups : 1;
    AddLaunch(x, groups, rows);
    RecordedProgram::Project(x, products);
  }
  Status RunExperts(const Experts& experts) override {
    const RowsScope scope(*this);
    TakeBytes(experts.x.tokens, CudaExpertBytes(config_));
    const int64_t intermediate = config_.shared_size();
    AddLaunch(experts.x, 1, {intermediate, intermediate});
    AddLaunch({experts.x.name, experts.x.tokens, intermediate}, 1, {config_.hidden_size});
    return {};
  }
  Rows KeepWanted(Rows all) override {
    const RowsScope scope(*this);
    TakeBytes(TokenSet::kWanted, all.columns * CudaElementBytes(all.name));
    return RecordedProgram::KeepWanted(all);
  }
  void Logits(Rows x, const ModuleKey&) override { AddLaunch(x, 1, {config_.vocab_size}); }

 private:
  void TakeBytes(TokenSet tokens, int64_t bytes) {
    Take(RowsName::kHeadInput, tokens, bytes / CudaElementBytes(RowsName::kHeadInput));
  }
  // Products of x with weights of so many rows, in whatever format.
  void AddLaunch(Rows x, int64_t groups, const std::vector<int64_t>& rows) {
    for (const auto format : {sm90::DenseFormat::kFp8, sm90::DenseFormat::kBf16}) {
      std::vector<sm90::DenseWeight> weights;
      for (const int64_t of_one : rows) {
        weights.push_back({format, of_one, x.columns / groups, groups});
      }
      dense_bytes_ =
          std::max(dense_bytes_, sm90::DenseScratchBytes(weights, step_.count(x.tokens)));
    }
  }

  const ModelConfig& config_;
  const StepShape step_;
  int64_t dense_bytes_ = 0;
};

// Pieces of the arena that are live at once, at most.
constexpr int64_t kPieces = 40;

// Arena and products.
void AddRows(const ModelConfig& c, CudaStepMemory::Sizes& sizes) {
  // The largest step: everything goes on, at the beginning or at the end of the longest context.
  for (const int64_t context : {sizes.tokens, c.max_position_embeddings}) {
    const StepShape step{.tokens = {sizes.tokens, sizes.tokens}, .context = {context, context}};
    StepNeeds needs(c, step);
    HB_CHECK(RunDeepseekV4(c, {}, step, needs).has_value(), "a recording fails");
    sizes.arena = std::max(sizes.arena, needs.most_live_bytes());
    sizes.dense_scratch = std::max(sizes.dense_scratch, needs.dense_bytes());
  }
  const int64_t mixing = sizes.tokens * (1 + c.hc_streams) * c.hc_streams * int64_t{sizeof(float)};
  sizes.arena += mixing + kPieces * kCudaArenaAlignment;
}

// Of one operation at a time.
int64_t ScratchBytes(const ModelConfig& c, int64_t tokens, int64_t context) {
  int64_t bytes = BoundaryScratchBytes(tokens, c.hidden_size, static_cast<int>(c.hc_streams));
  for (const LayerConfig& layer : c.layers) {
    const int64_t entries = layer.compress_rate > 0 ? context / layer.compress_rate : 0;
    const bool indexes = layer.attention == AttentionKind::kC4;
    const int64_t keys = c.sliding_window + (indexes ? std::min(entries, c.index_topk) : entries);
    bytes = std::max(bytes, AttentionScratchBytes(tokens, c.attention_heads, keys));
    if (indexes) bytes = std::max(bytes, SelectScratchBytes(tokens, c.index_heads, entries));
  }
  return bytes;
}

MoeLimits ExpertLimits(const ModelConfig& c, int64_t tokens) {
  return {.tokens = tokens,
          .top_k = c.experts_per_token,
          .experts = c.routed_experts,
          .hidden = c.hidden_size,
          .intermediate = c.expert_size};
}

}  // namespace

Status CheckCudaShapes(const ModelConfig& c) {
  const auto refuse = [](const std::string& what) {
    return MakeError("a GPU computes no model with {}; run it on the CPU", what);
  };
  const bool large = c.head_dim == 512 && c.rope_dim == 64 && c.attention_heads % 64 == 0;
  const bool small = c.head_dim == 128 && c.rope_dim == 32 && c.attention_heads == 8;
  if (!large && !small) {
    return refuse(
        fmt::format("{} heads of {} numbers, {} of them rotary (multiples of 64 heads of "
                    "512 with 64, or 8 of 128 with 32)",
                    c.attention_heads, c.head_dim, c.rope_dim));
  }
  const bool indexes = std::ranges::any_of(
      c.layers, [](const LayerConfig& l) { return l.attention == AttentionKind::kC4; });
  if (indexes && ((c.index_head_dim != 64 && c.index_head_dim != 128) || c.index_heads > 64)) {
    return refuse(fmt::format("{} index heads of {} numbers (at most 64, of 64 or 128)",
                              c.index_heads, c.index_head_dim));
  }
  if (c.hc_streams != 1 && c.hc_streams != 2 && c.hc_streams != 4) {
    return refuse(fmt::format("{} residual streams (1, 2 or 4)", c.hc_streams));
  }
  if (c.hidden_size % 256 != 0 || c.hidden_size > 8192) {
    return refuse(fmt::format("hidden_size {} (multiples of 256 up to 8,192)", c.hidden_size));
  }
  for (const auto& [name, width] : {std::pair{"q_lora_rank", c.q_lora_rank},
                                    std::pair{"o_groups * o_lora_rank", c.o_groups * c.o_lora_rank},
                                    std::pair{"the shared expert's size", c.shared_size()}}) {
    if (width % 64 != 0 || width == 0) {
      return refuse(fmt::format("{} {} (multiples of 64)", name, width));
    }
  }
  return {};
}

int64_t CudaElementBytes(RowsName name) {
  switch (name) {
    case RowsName::kStreams:
    case RowsName::kInput:
    case RowsName::kAttentionOut:
    case RowsName::kMoeOut:
    case RowsName::kWindow:
    case RowsName::kLowRank:
    case RowsName::kQueries:
    case RowsName::kIndexQueries:
    case RowsName::kAttended:
    case RowsName::kGrouped:
    case RowsName::kHeadInput:
      return 2;
    case RowsName::kEntryKv:
    case RowsName::kEntryScore:
    case RowsName::kIndexKv:
    case RowsName::kIndexScore:
    case RowsName::kIndexWeights:
    case RowsName::kSelected:
    case RowsName::kSelectedCount:
    case RowsName::kRouterLogits:
    case RowsName::kChoices:
    case RowsName::kChoiceWeights:
      return 4;
  }
  return 4;
}

// routed and shared [D] fp32; gate and up [I] fp32, h [I] bf16 of the shared expert.
int64_t CudaExpertBytes(const ModelConfig& c) {
  return 2 * c.hidden_size * int64_t{sizeof(float)} +
         c.shared_size() * (2 * int64_t{sizeof(float)} + int64_t{sizeof(Bf16)});
}

CudaStepMemory::Sizes CudaStepMemory::SizesOf(const ModelConfig& config, const MoeKernels& kernels,
                                              int64_t tokens, int64_t context) {
  Sizes sizes{.tokens = tokens,
              .scratch = ScratchBytes(config, tokens, context),
              .experts = CudaMoeWorkspace::Bytes(kernels, ExpertLimits(config, tokens))};
  AddRows(config, sizes);
  return sizes;
}

Result<CudaStepMemory> CudaStepMemory::Create(const ModelConfig& config, const MoeKernels& kernels,
                                              int64_t tokens, int64_t context) {
  CudaStepMemory memory;
  memory.sizes_ = SizesOf(config, kernels, tokens, context);
  const std::string what = fmt::format("workspace of {} tokens", tokens);
  HB_ASSIGN_OR_RETURN(memory.arena_, DeviceBuffer::Allocate(memory.sizes_.arena, what));
  HB_ASSIGN_OR_RETURN(memory.scratch_, DeviceBuffer::Allocate(memory.sizes_.scratch, what));
  HB_ASSIGN_OR_RETURN(memory.dense_scratch_,
                      DeviceBuffer::Allocate(memory.sizes_.dense_scratch, what));
  if (const auto bytes = static_cast<size_t>(memory.sizes_.dense_scratch); bytes > 0) {
    HB_RETURN_IF_ERROR(CudaStatus(cudaMemset(memory.dense_scratch_.data(), 0, bytes), what));
  }
  HB_ASSIGN_OR_RETURN(memory.experts_,
                      CudaMoeWorkspace::Create(kernels, ExpertLimits(config, tokens)));
  return memory;
}

}  // namespace halfbyte
