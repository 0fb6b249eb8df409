// The dispatch plan in GPU memory (moe-layer.md §5): which row each slot takes, and the token tiles
// that the grouped products walk through. Everything is decided on the device, so a captured graph
// serves any routing.
//
// Rows of an expert are in slot order, whatever runs first: positions come from counts and scans,
// never from an atomic. A slot without a local expert (another rank's, -1, any id outside the
// table) takes no row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/dispatch_plan/token_tiles.h"

namespace halfbyte {

inline constexpr int64_t kMaxPlanExperts = 2048;  // local ones
inline constexpr int64_t kMaxPlanSlots = int64_t{1} << 26;

// Pieces in which slots are counted before they are placed.
inline constexpr int64_t kPlanChunkSlots = 2048;
constexpr int64_t PlanChunks(int64_t slots) {
  return (slots + kPlanChunkSlots - 1) / kPlanChunkSlots;
}

struct TokenPlanArguments {
  const int32_t* topk_ids = nullptr;         // [slots]
  int64_t slots = 0;                         // 1..kMaxPlanSlots
  const int32_t* local_of_global = nullptr;  // [global_experts]; -1: another rank's
  int32_t global_experts = 0;
  int32_t local_experts = 0;  // at most kMaxPlanExperts
  int32_t max_tile_rows = 0;
  int32_t wide_tile_rows = 0;  // tiles with more rows than this come before the others
};

// Once per device, before the first launch and outside of stream capture.
cudaError_t PrepareTokenPlan();
cudaError_t LaunchTokenPlan(const TokenPlanArguments& arguments, const TokenPlan& plan,
                            cudaStream_t stream);

}  // namespace halfbyte
