// The inner product loop of Linear, once per instruction set (linear_simd.inc).
#pragma once

#include <cstdint>

#include "tensor/weight_matrix.h"

namespace halfbyte {

// Sizes are spelled out, so that the bodies need no inline function of another header (simd16.h).
struct LinearArguments {
  const float* x = nullptr;  // [tokens, k]
  float* y = nullptr;        // [tokens, n]; columns [begin, end) are written
  const WeightMatrix* w = nullptr;
  int64_t tokens = 0;
  int64_t k = 0;
  int64_t n = 0;
  int64_t begin = 0;  // rows of w
  int64_t end = 0;
  int64_t row_bytes = 0;        // of w's data
  int64_t scale_row_bytes = 0;  // of w's scales
  bool segments = false;        // in the order of LinearSegments
  float factor = 1;             // of each sum: NVFP4's global_scale, else 1 (which changes no bit)
};

namespace simd_scalar {
void LinearTile(const LinearArguments& arguments);
}
namespace simd_avx2 {
void LinearTile(const LinearArguments& arguments);
}
namespace simd_avx512 {
void LinearTile(const LinearArguments& arguments);
}

}  // namespace halfbyte
