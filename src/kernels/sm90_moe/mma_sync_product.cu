#include "device/cuda/launch.cuh"
#include "kernels/sm90_moe/mma_sync_product.h"

namespace halfbyte::sm90 {
namespace {

constexpr unsigned kWarpSize = 32;

// A warp for 16 rows of w and 8 of x.
__global__ void MmaSyncProduct(const Bf16* w, const Bf16* x, int64_t n, int64_t k, float* y) {
  const int64_t row = int64_t{blockIdx.x} * 16 + threadIdx.x / 4;
  const int64_t column = int64_t{blockIdx.y} * 8;
  const int pair = threadIdx.x % 4 * 2;
  const auto word = [](const Bf16* at) { return *reinterpret_cast<const uint32_t*>(at); };
  const Bf16* const a = w + row * k + pair;
  const Bf16* const b = x + (column + threadIdx.x / 4) * k + pair;
  float sum[4] = {};
  for (int64_t at = 0; at < k; at += 16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(word(a + at)), "r"(word(a + 8 * k + at)), "r"(word(a + at + 8)),
          "r"(word(a + 8 * k + at + 8)), "r"(word(b + at)), "r"(word(b + at + 8)));
  }
  for (int i = 0; i < 4; ++i) y[(row + i / 2 * 8) * n + column + pair + i % 2] = sum[i];
}

}  // namespace

cudaError_t LaunchMmaSyncProduct(const Bf16* w, int64_t m, const Bf16* x, int64_t n, int64_t k,
                                 float* y, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(m / 16), static_cast<unsigned>(n / 8));
  return LaunchKernel(MmaSyncProduct, {grid, kWarpSize}, stream, w, x, n, k, y);
}

}  // namespace halfbyte::sm90
