#include "device/cuda/launch.cuh"
#include "kernels/sm90_dense/reference/dense_reference.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"

namespace halfbyte::sm90 {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kSegment = 1024;

__device__ double Weight(const StoredDense& stored, int64_t row, int64_t column) {
  const int64_t at = row * stored.columns + column;
  if (stored.format == DenseFormat::kBf16) {
    return double{ToFloat(reinterpret_cast<const Bf16*>(stored.data)[at])};
  }
  if (stored.format == DenseFormat::kF32) {
    return double{reinterpret_cast<const float*>(stored.data)[at]};
  }
  const int64_t block = row / 128 * ((stored.columns + 127) / 128) + column / 128;
  const float scale = stored.scale == DenseScale::kE8m0
                          ? E8m0ToFloat(static_cast<uint8_t>(stored.scales[block]))
                          : reinterpret_cast<const float*>(stored.scales)[block];
  return double{E4m3ToFloat(static_cast<uint8_t>(stored.data[at]))} * double{scale};
}

__global__ void __launch_bounds__(kThreads)
    ReferenceDense(const StoredDense stored, const Bf16* x, int64_t tokens, double* value,
                   double* bound) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= tokens * stored.rows) return;
  const int64_t token = at / stored.rows, row = at % stored.rows;
  const Bf16* const numbers = x + token * stored.groups * stored.columns +
                              row / (stored.rows / stored.groups) * stored.columns;
  double sum = 0, slack = 0, of_segments = 0;
  int64_t segments = 0;
  for (int64_t begin = 0; begin < stored.columns; begin += kSegment, ++segments) {
    double segment = 0, magnitude = 0;
    for (int64_t k = begin; k < begin + kSegment && k < stored.columns; ++k) {
      const double term = Weight(stored, row, k) * double{ToFloat(numbers[k])};
      segment += term;
      magnitude += fabs(term);
    }
    sum += segment;
    slack += 2e-10 * double{kSegment} * magnitude;
    of_segments += fabs(segment);
  }
  value[at] = sum;
  bound[at] = slack + static_cast<double>(segments - 1) * 0x1p-24 * of_segments;
}

}  // namespace

cudaError_t LaunchReferenceDense(const StoredDense& stored, const Bf16* x, int64_t tokens,
                                 double* value, double* bound, cudaStream_t stream) {
  const int64_t blocks = (tokens * stored.rows + kThreads - 1) / kThreads;
  return LaunchKernel(ReferenceDense, {dim3(static_cast<unsigned>(blocks)), kThreads}, stream,
                      stored, x, tokens, value, bound);
}

}  // namespace halfbyte::sm90
