// Calls with few slots (one token, or a few): the gather works the dispatch plan out by itself, so
// that no kernel has to run before it. Tiles have eight rows each.
#pragma once

#include <cstdint>

namespace halfbyte::sm90 {

inline constexpr int32_t kMaxFewSlots = 64;

struct FewSlots {
  const int32_t* topk_ids = nullptr;  // [slots]
  int32_t slots = 0;                  // 0: the plan is read from memory; else 1..kMaxFewSlots
  const int32_t* local_of_global = nullptr;  // [global_experts]; -1: another rank's
  int32_t global_experts = 0;
};

}  // namespace halfbyte::sm90
