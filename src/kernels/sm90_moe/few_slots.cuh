// The plan of few_slots.h, in shared memory. It is that of kernels/dispatch_plan/token_plan.h for
// tiles of eight rows.
#pragma once

#include "kernels/dispatch_plan/token_tiles.h"
#include "kernels/sm90_moe/few_slots.h"

namespace halfbyte::sm90 {

struct alignas(16) FewSlotsPlan {
  int32_t expert[kMaxFewSlots];       // local one of each slot; -1: none
  int32_t begins[kMaxFewSlots];       // that expert, if the slot is the first of a tile; else kNone
  int32_t row_of_slot[kMaxFewSlots];  // -1: no local expert
  TokenTile tiles[kMaxFewSlots];
  int32_t tile_count;

  static constexpr int32_t kNone = INT32_MAX;
};

// How many of the first `slots` numbers, rounded up to a multiple of four, `counts` says yes to.
template <class Counts>
__device__ __forceinline__ int32_t CountSlots(const int32_t* numbers, int32_t slots,
                                              const Counts& counts) {
  int32_t count = 0;
#pragma unroll 4
  for (int32_t i = 0; i < slots; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(numbers + i);
    count += int{counts(i, four.x)} + int{counts(i + 1, four.y)} + int{counts(i + 2, four.z)} +
             int{counts(i + 3, four.w)};
  }
  return count;
}

// By all threads of a block, of which there are kMaxFewSlots at least.
__device__ inline void PlanFewSlots(const FewSlots& few, FewSlotsPlan& plan) {
  const int slot = static_cast<int>(threadIdx.x);
  if (slot < kMaxFewSlots) {
    const int32_t id = slot < few.slots ? few.topk_ids[slot] : -1;
    plan.expert[slot] = id < 0 || id >= few.global_experts ? -1 : few.local_of_global[id];
  }
  __syncthreads();
  int32_t expert = -1, position = 0;  // among the slots of the expert
  bool begins = false;
  if (slot < kMaxFewSlots) {
    expert = plan.expert[slot];
    position = CountSlots(plan.expert, few.slots,
                          [&](int i, int32_t other) { return i < slot && other == expert; });
    begins = expert >= 0 && position % kTileStep == 0;
    plan.begins[slot] = begins ? expert : FewSlotsPlan::kNone;
  }
  const int32_t tiles = __syncthreads_count(begins);
  if (slot < kMaxFewSlots) {
    const int32_t before =
        CountSlots(plan.begins, few.slots, [&](int, int32_t other) { return other < expert; });
    const int32_t row = (before + position / kTileStep) * kTileStep + position % kTileStep;
    plan.row_of_slot[slot] = expert >= 0 ? row : -1;
    if (begins) plan.tiles[row / kTileStep] = {expert, row, kTileStep};
  }
  if (slot == 0) plan.tile_count = tiles;
  __syncthreads();
}

}  // namespace halfbyte::sm90
