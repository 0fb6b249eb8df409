#include "device/cuda/launch.cuh"
#include "kernels/sm90_dense/dense_f32.h"

namespace halfbyte::sm90 {
namespace {

constexpr int kLanes = 16;  // of one sum
constexpr int kThreads = 128;
constexpr int kRowsAtOnce = kThreads / kLanes;

// A number of y for each sixteen lanes.
__global__ void __launch_bounds__(kThreads)
    DenseF32(const Bf16* x, int64_t tokens, const DenseProduct product) {
  LetNextStart();
  WaitForPrevious();
  const DenseWeight& w = product.weight;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsAtOnce + threadIdx.x / kLanes;
  const bool exists = row < w.rows;
  const int64_t of_x = exists ? row / (w.rows / w.groups) * w.columns : 0;
  const float* const weights =
      reinterpret_cast<const float*>(w.packed) + (exists ? row : 0) * w.columns;
  for (int64_t token = blockIdx.y; token < tokens; token += gridDim.y) {
    const Bf16* const numbers = x + token * w.groups * w.columns + of_x;
    float sum = 0;
    for (int64_t k = lane; k < w.columns; k += kLanes) {
      sum = __fmaf_rn(ToFloat(numbers[k]), weights[k], sum);
    }
    for (int width = kLanes / 2; width >= 1; width /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, width);
    }
    if (lane != 0 || !exists) continue;
    const int64_t to = token * w.rows + row;
    if (product.output == DenseOutput::kBf16) {
      static_cast<Bf16*>(product.y)[to] = ToBf16(sum);
    } else {
      static_cast<float*>(product.y)[to] =
          product.output == DenseOutput::kF32 ? sum : ToFloat(ToBf16(sum));
    }
  }
}

}  // namespace

cudaError_t LaunchDenseF32(const Bf16* x, int64_t tokens, const DenseProduct& product,
                           cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 65535;
  const dim3 grid(static_cast<unsigned>((product.weight.rows + kRowsAtOnce - 1) / kRowsAtOnce),
                  static_cast<unsigned>(tokens < kMostBlocks ? tokens : kMostBlocks));
  return LaunchDependent(DenseF32, {grid, kThreads}, stream, x, tokens, product);
}

}  // namespace halfbyte::sm90
