#include "device/cuda/launch.cuh"
#include "kernels/sm90_moe/reference/reference_gemm.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"

namespace halfbyte::sm90 {
namespace {

constexpr int kThreads = 128;
constexpr int kGrid = 132 * 8;

// Row `row` of the packed matrix at column k, code * block_scale.
__device__ float PackedWeight(const uint8_t* matrix, const PackedShape& shape, int64_t row,
                              int64_t k) {
  const uint8_t* block = matrix + shape.block_offset(row / kStripRows, k / kBlockK);
  const int64_t in_strip = row % kStripRows, group = k % kBlockK / kGroupK;
  const int64_t t = k % kGroupK / 16, s = k % 16 / 4, i = k % 4;
  const int64_t thread = in_strip / 16 * 32 + in_strip % 8 * 4 + t;
  const int upper = in_strip % 16 >= 8 ? 1 : 0;
  const uint32_t word =
      *reinterpret_cast<const uint32_t*>(block + CodeOffset(group, thread) + 4 * s);
  const uint8_t code =
      UnweaveCode(word, static_cast<int>(i / 2 * 2) + upper, static_cast<int>(i % 2));
  return E2m1ToFloat(code) *
         E4m3ToFloat(E4m3OfScaleByte(block[ScaleOffset(group, thread) + upper]));
}

__device__ double Sum(const uint8_t* matrix, const PackedShape& shape, int64_t weight_row,
                      const uint8_t* image, const TokenTile& tile, int64_t row) {
  double sum = 0;
  for (int64_t k = 0; k < shape.k; ++k) {
    const auto* x = reinterpret_cast<const Bf16*>(image + ImageOffset(tile, shape.k, row, k));
    sum += double{PackedWeight(matrix, shape, weight_row, k)} * double{ToFloat(*x)};
  }
  return sum;
}

__device__ float Alpha(const float* alpha, const GemmArguments& gemm, const TokenTile& tile,
                       int64_t row) {
  const float scale = gemm.row_scale == nullptr ? 1.0f : gemm.row_scale[tile.row_begin + row];
  return alpha[tile.expert] * scale;
}

__global__ void __launch_bounds__(kThreads) ReferenceGateUp(const GateUpArguments arguments) {
  const GemmArguments& gemm = arguments.gemm;
  const int64_t channels = PaddedK(gemm.shape.intermediate);
  for (int32_t i = 0; i < *gemm.tile_count; ++i) {
    const TokenTile tile = gemm.tiles[i];
    const uint8_t* expert = gemm.experts + tile.expert * gemm.shape.bytes();
    for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < tile.rows * channels;
         at += int64_t{gridDim.x} * kThreads) {
      const int64_t row = at / channels, channel = at % channels;
      float h = 0;
      if (channel < gemm.shape.intermediate) {
        const auto sum = [&](bool up) {
          return Sum(expert, gemm.shape.gate_up(), RowOfGateUp({up, channel}), arguments.image,
                     tile, row);
        };
        const float gate =
            Alpha(arguments.alpha_gate, gemm, tile, row) * static_cast<float>(sum(false));
        const float up = Alpha(arguments.alpha_up, gemm, tile, row) * static_cast<float>(sum(true));
        const float g = fminf(gate, arguments.limit);
        const float u = fminf(fmaxf(up, -arguments.limit), arguments.limit);
        const float weight =
            arguments.row_weight == nullptr ? 1.0f : arguments.row_weight[tile.row_begin + row];
        h = g / (1.0f + expf(-arguments.swiglu_alpha * g)) * (u + arguments.swiglu_add) * weight;
      }
      *reinterpret_cast<Bf16*>(
          arguments.h_image + ImageOffset(tile, gemm.shape.intermediate, row, channel)) = ToBf16(h);
    }
  }
}

__global__ void __launch_bounds__(kThreads) ReferenceDown(const DownArguments arguments) {
  const GemmArguments& gemm = arguments.gemm;
  const int64_t channels = gemm.shape.hidden;
  for (int32_t i = 0; i < *gemm.tile_count; ++i) {
    const TokenTile tile = gemm.tiles[i];
    const uint8_t* matrix =
        gemm.experts + tile.expert * gemm.shape.bytes() + gemm.shape.down_offset();
    for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < tile.rows * channels;
         at += int64_t{gridDim.x} * kThreads) {
      const int64_t row = at / channels, channel = at % channels;
      const double sum = Sum(matrix, gemm.shape.down(), channel, arguments.image, tile, row);
      arguments.slot_values[(tile.row_begin + row) * channels + channel] =
          Alpha(arguments.alpha, gemm, tile, row) * static_cast<float>(sum);
    }
  }
}

}  // namespace

cudaError_t LaunchReferenceGateUp(const GateUpArguments& arguments, cudaStream_t stream) {
  return LaunchKernel(ReferenceGateUp, {kGrid, kThreads}, stream, arguments);
}

cudaError_t LaunchReferenceDown(const DownArguments& arguments, cudaStream_t stream) {
  return LaunchKernel(ReferenceDown, {kGrid, kThreads}, stream, arguments);
}

}  // namespace halfbyte::sm90
