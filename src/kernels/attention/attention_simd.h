// One head's query against decoded keys, once per instruction set (attention_simd.inc).
#pragma once

#include <cstdint>

namespace halfbyte {

// Order of operations: keys are the window's, then the entries, ascending. A score is the
// sixteen-lane dot product of simd16.h, times `scale`. Weights exp(score - max) are added in
// sixteen lanes by key number; each output channel adds weight * value key by key with fused
// multiply-adds, and is divided by the sum of the weights and the sink's.
struct HeadArguments {
  const float* q = nullptr;       // [dim]
  const float* window = nullptr;  // [window_count, dim]
  int64_t window_count = 0;
  const float* entries = nullptr;  // [entry_count, dim]
  int64_t entry_count = 0;
  int64_t dim = 0;
  float scale = 1;
  float sink = 0;
  bool round_to_bf16 = false;
  float* scores = nullptr;  // scratch: the number of keys rounded up to 16
  float* out = nullptr;     // [dim]
};

namespace simd_scalar {
void AttendHead(const HeadArguments& arguments);
}
namespace simd_avx2 {
void AttendHead(const HeadArguments& arguments);
}
namespace simd_avx512 {
void AttendHead(const HeadArguments& arguments);
}

}  // namespace halfbyte
