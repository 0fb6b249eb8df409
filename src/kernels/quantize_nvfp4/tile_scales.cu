#include "device/cuda/launch.cuh"
#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int kThreads = 256;

unsigned BlocksFor(int64_t elements) {
  const int64_t blocks = (elements + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 132 * 16 ? blocks : 132 * 16);
}

__global__ void TileScales(const uint8_t* linear, TiledScales layout, uint8_t* tiled) {
  const LinearScales source{layout.rows, layout.blocks};
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < layout.bytes();
       i += int64_t{gridDim.x} * kThreads) {
    const TiledScales::Position at = layout.position(i);
    const bool padding = at.row >= layout.rows || at.block >= layout.blocks;
    tiled[i] = padding ? uint8_t{0} : linear[source.offset(at.row, at.block)];
  }
}

__global__ void UntileScales(const uint8_t* tiled, TiledScales layout, uint8_t* linear) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < layout.rows * layout.blocks;
       i += int64_t{gridDim.x} * kThreads) {
    linear[i] = tiled[layout.offset(i / layout.blocks, i % layout.blocks)];
  }
}

}  // namespace

cudaError_t LaunchTileScales(const uint8_t* linear, int64_t rows, int64_t blocks, uint8_t* tiled,
                             cudaStream_t stream) {
  const TiledScales layout{rows, blocks};
  if (layout.bytes() == 0) return cudaSuccess;
  return LaunchKernel(TileScales, {BlocksFor(layout.bytes()), kThreads}, stream, linear, layout,
                      tiled);
}

cudaError_t LaunchUntileScales(const uint8_t* tiled, int64_t rows, int64_t blocks, uint8_t* linear,
                               cudaStream_t stream) {
  const TiledScales layout{rows, blocks};
  if (rows * blocks == 0) return cudaSuccess;
  return LaunchKernel(UntileScales, {BlocksFor(rows * blocks), kThreads}, stream, tiled, layout,
                      linear);
}

}  // namespace halfbyte
