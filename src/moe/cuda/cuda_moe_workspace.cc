#include "moe/cuda/cuda_moe_workspace.h"

#include <algorithm>

#include "kernels/dispatch_plan/token_plan.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kNarrowestTile = 8;  // rows; more tiles than that there cannot be

// Hands out pieces of memory that may be null, when only the sizes matter.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* Take(int64_t count) {
    std::byte* piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += RoundUp(count * int64_t{sizeof(T)}, kAlignment);
    return reinterpret_cast<T*>(piece);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

}  // namespace

CudaMoeWorkspace::Layout CudaMoeWorkspace::Lay(const MoeKernels& kernels, std::byte* memory,
                                               const MoeLimits& limits) {
  const int64_t slots = limits.slots();
  const int64_t rows = MaxTokenRows(slots, limits.experts);
  Pieces pieces(memory);
  MoeKernelMemory layout;
  layout.plan.tiles = pieces.Take<TokenTile>(MaxTokenTiles(slots, limits.experts, kNarrowestTile));
  layout.plan.tile_count = pieces.Take<int32_t>(2);
  layout.plan.row_count = pieces.Take<int32_t>(1);
  layout.plan.row_of_slot = pieces.Take<int32_t>(slots);
  layout.plan.slot_of_row = pieces.Take<int32_t>(rows);
  layout.plan.tile_of_atom = pieces.Take<int32_t>(rows / kTileStep);
  layout.plan.counts = pieces.Take<int32_t>(PlanChunks(slots) * limits.experts);
  layout.row_scales = pieces.Take<float>(rows);
  layout.row_weights = pieces.Take<float>(rows);
  const int64_t image_bytes = kernels.ImageBytes(rows, limits.hidden);
  const int64_t value_bytes = rows * limits.hidden * int64_t{sizeof(float)};
  layout.image = pieces.Take<uint8_t>(std::max(image_bytes, value_bytes));
  layout.slot_values = reinterpret_cast<float*>(layout.image);
  layout.h_image = pieces.Take<uint8_t>(kernels.ImageBytes(rows, limits.intermediate));
  return {layout, pieces.bytes()};
}

int64_t CudaMoeWorkspace::Bytes(const MoeKernels& kernels, const MoeLimits& limits) {
  return Lay(kernels, nullptr, limits).bytes;
}

Result<CudaMoeWorkspace> CudaMoeWorkspace::Create(const MoeKernels& kernels,
                                                  const MoeLimits& limits) {
  HB_ASSIGN_OR_RETURN(DeviceBuffer own,
                      DeviceBuffer::Allocate(Bytes(kernels, limits), "workspace of the MoE layer"));
  HB_ASSIGN_OR_RETURN(CudaMoeWorkspace workspace, In(kernels, own.data(), own.bytes(), limits));
  workspace.own_ = std::move(own);
  return workspace;
}

Result<CudaMoeWorkspace> CudaMoeWorkspace::In(const MoeKernels& kernels, std::byte* memory,
                                              int64_t bytes, const MoeLimits& limits) {
  if (limits.slots() > kMaxPlanSlots) {
    return MakeError(
        "workspace of the MoE layer: {} tokens with {} experts each; at most {} rows "
        "are possible at once",
        limits.tokens, limits.top_k, kMaxPlanSlots);
  }
  if (bytes < Bytes(kernels, limits)) {
    return MakeError("workspace of the MoE layer: {} bytes for {} tokens, {} are needed", bytes,
                     limits.tokens, Bytes(kernels, limits));
  }
  if (reinterpret_cast<uintptr_t>(memory) % kAlignment != 0) {
    return MakeError("workspace of the MoE layer: its address {:#x} is no multiple of {}",
                     reinterpret_cast<uintptr_t>(memory), kAlignment);
  }
  CudaMoeWorkspace workspace;
  workspace.limits_ = limits;
  workspace.data_ = memory;
  workspace.layout_ = Lay(kernels, memory, limits);
  return workspace;
}

}  // namespace halfbyte
