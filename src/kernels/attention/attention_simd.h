// The queries of some heads of one token against decoded keys, once per instruction set
// (attention_simd.inc).
#pragma once

#include <cstdint>

namespace halfbyte {

// Order of operations: keys are the window's, then the entries, ascending. A score is the
// sixteen-lane dot product of simd16.h, times `scale`. Weights exp(score - max) are added in
// sixteen lanes by key number; each output channel adds weight * value key by key with fused
// multiply-adds, and is divided by the sum of the weights and the sink's.
struct HeadArguments {
  int64_t heads = 0;
  const float* q = nullptr;       // [heads, dim]
  const float* window = nullptr;  // [window_count, dim]
  int64_t window_count = 0;
  const float* entries = nullptr;  // [entry_count, dim]
  int64_t entry_count = 0;
  int64_t dim = 0;
  float scale = 1;
  const float* sinks = nullptr;  // [heads]
  bool round_to_bf16 = false;
  int64_t score_stride = 0;  // the number of keys rounded up to 16
  float* scores = nullptr;   // scratch [heads, score_stride]
  float* out = nullptr;      // [heads, dim]
};

namespace simd_scalar {
void AttendHeads(const HeadArguments& arguments);
}
namespace simd_avx2 {
void AttendHeads(const HeadArguments& arguments);
}
namespace simd_avx512 {
void AttendHeads(const HeadArguments& arguments);
}

}  // namespace halfbyte
