// The queries of some heads of one token against decoded keys, once per instruction set
// (attention_simd.inc), and with products of bf16 (attention_avx512_bf16.cc). attention.h has the
// order of operations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfbyte {

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
  float* shares = nullptr;  // scratch [heads]
  float* totals = nullptr;  // scratch [heads, dim rounded up to 64], see attend_blocks.h
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
