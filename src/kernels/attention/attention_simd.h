// The queries of some heads of one token against decoded keys, once per instruction set
// (attention_simd.inc), and with products of bf16 (attention_avx512_bf16.cc).
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfbyte {

// Order of operations: keys are the window's, then the entries, ascending, then the sink. A score
// is the sixteen-lane dot product of simd16.h, times `scale`. Weights exp(score - max) are added in
// sixteen lanes by key number; each output channel adds weight * value key by key with fused
// multiply-adds, and is multiplied by 1 / the sum of the weights. With round_to_bf16 weights are
// rounded to bf16 before any of this, and q's numbers and weights below 2^-60 count as 0, because
// `vdpbf16ps` knows no subnormal numbers.
struct HeadArguments {
  int64_t heads = 0;
  const float* q = nullptr;  // [heads, dim]
  // Decoded rows, as the variant keeps them; rows of zeros up to a multiple of 4.
  const std::byte* const* keys = nullptr;
  int64_t key_count = 0;
  int64_t dim = 0;
  float scale = 1;
  const float* sinks = nullptr;  // [heads]
  bool round_to_bf16 = false;
  float* q_rows = nullptr;  // scratch [heads, dim rounded up to 16]
  float* scores = nullptr;  // scratch [heads, score_stride()]
  float* out = nullptr;     // [heads, dim]

  // Scores, the sink, and room for sixteen to be stored behind the last.
  int64_t score_stride() const { return (key_count + 31) / 16 * 16; }
};

// Keys: fp32 numbers, zeros up to a multiple of 16.
namespace simd_scalar {
void AttendHeads(const HeadArguments& arguments);
}
namespace simd_avx2 {
void AttendHeads(const HeadArguments& arguments);
}
namespace simd_avx512 {
void AttendHeads(const HeadArguments& arguments);
// Keys: pairs of bf16 numbers as simd_avx512::DecodeKvRowPairs (kv_row.h) makes them. For
// round_to_bf16 and a dim that is a multiple of 32.
void AttendHeadsBf16(const HeadArguments& arguments);
}  // namespace simd_avx512

}  // namespace halfbyte
