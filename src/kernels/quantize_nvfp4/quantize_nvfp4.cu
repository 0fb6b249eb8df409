#include "device/cuda/dependent_launch.cuh"
#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4_device.cuh"

namespace halfbyte {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxBlocks = 132 * 8;

__device__ void LoadBlock(const Bf16* from, float* x) {
  const auto* words = reinterpret_cast<const uint4*>(from);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 four = words[half];
    const uint32_t word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[8 * half + 2 * i] = LowBf16(word[i]);
      x[8 * half + 2 * i + 1] = HighBf16(word[i]);
    }
  }
}

// Of the row's finite values, in all threads.
__device__ float RowAmax(const Bf16* row, int64_t blocks) {
  __shared__ uint32_t warp_amax[kThreads / 32];
  float amax = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
    float x[kNvfp4Block];
    LoadBlock(row + b * kNvfp4Block, x);
#pragma unroll
    for (int i = 0; i < kNvfp4Block; ++i) amax = JoinFiniteAmax(amax, x[i]);
  }
  const uint32_t own = __reduce_max_sync(0xffffffffu, __float_as_uint(amax));
  __syncthreads();  // of the last row everything has been read
  if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = own;
  __syncthreads();
  uint32_t all = 0;
  for (int w = 0; w < kThreads / 32; ++w) all = max(all, warp_amax[w]);
  return __uint_as_float(all);
}

__device__ void StoreBlock(const QuantizeRowsArguments& arguments, int64_t row, int64_t b,
                           const Nvfp4Block& block) {
  const int64_t blocks = arguments.k / kNvfp4Block;
  if (arguments.codes != nullptr) {
    uint64_t codes = 0;
#pragma unroll
    for (int i = 0; i < kNvfp4Block / 2; ++i) codes |= uint64_t{block.codes[i]} << (8 * i);
    reinterpret_cast<uint64_t*>(arguments.codes)[row * blocks + b] = codes;
  }
  if (arguments.block_scales != nullptr) arguments.block_scales[row * blocks + b] = block.scale;
}

// What comes out of RequantizeBlock.
__device__ void StoreDecoded(const float* x, Bf16* out) {
  uint32_t word[kNvfp4Block / 2];
#pragma unroll
  for (int i = 0; i < kNvfp4Block / 2; ++i) word[i] = PackExactBf16(x[2 * i], x[2 * i + 1]);
  auto* to = reinterpret_cast<uint4*>(out);
  to[0] = make_uint4(word[0], word[1], word[2], word[3]);
  to[1] = make_uint4(word[4], word[5], word[6], word[7]);
}

__global__ void __launch_bounds__(kThreads) QuantizeRows(const QuantizeRowsArguments arguments) {
  const int64_t blocks = arguments.k / kNvfp4Block;
  ThreadStats stats;
  WaitForPrevious();
  LetNextStart();
  for (int64_t row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
    const Bf16* x = arguments.x + row * arguments.k;
    const GlobalScale global = arguments.static_scale > 0
                                   ? GlobalScale(arguments.static_scale)
                                   : GlobalScale::FromAmax(RowAmax(x, blocks));
    for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
      float values[kNvfp4Block];
      LoadBlock(x + b * kNvfp4Block, values);
      if (arguments.codes != nullptr || arguments.block_scales != nullptr) {
        StoreBlock(arguments, row, b, QuantizeNvfp4Block(values, global));
      }
      RequantizeBlock(values, global, &stats.sum);
      if (arguments.decoded != nullptr) {
        StoreDecoded(values, arguments.decoded + row * arguments.k + b * kNvfp4Block);
      }
    }
    if (threadIdx.x == 0 && arguments.row_scales != nullptr) {
      arguments.row_scales[row] = global.value();
    }
  }
  if (arguments.stats != nullptr) stats.AddTo(arguments.stats);
}

}  // namespace

cudaError_t LaunchQuantizeRows(const QuantizeRowsArguments& arguments, cudaStream_t stream) {
  if (arguments.rows == 0) return cudaSuccess;
  const int64_t grid = arguments.rows < kMaxBlocks ? arguments.rows : kMaxBlocks;
  return LaunchDependent(QuantizeRows, {static_cast<unsigned>(grid), kThreads}, stream, arguments);
}

}  // namespace halfbyte
