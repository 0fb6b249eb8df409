#include "device/cuda/launch.cuh"
#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4_device.cuh"

namespace halfbyte {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxBlocks = 132 * 8;

constexpr int kBlockWords = kNvfp4Block / 2;

__device__ void LoadBlock(const Bf16* from, uint32_t (&words)[kBlockWords]) {
  const auto* fours = reinterpret_cast<const uint4*>(from);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 four = fours[half];
    words[4 * half] = four.x;
    words[4 * half + 1] = four.y;
    words[4 * half + 2] = four.z;
    words[4 * half + 3] = four.w;
  }
}

// Of the row's finite values, in all threads.
__device__ float RowAmax(const Bf16* row, int64_t blocks) {
  __shared__ uint32_t warp_amax[kThreads / 32];
  Magnitudes own;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
    uint32_t words[kBlockWords];
    LoadBlock(row + b * kNvfp4Block, words);
#pragma unroll
    for (const uint32_t word : words) own = Join(own, MagnitudesOfPair(word));
  }
  const uint32_t warp = __reduce_max_sync(0xffffffffu, own.largest_bits());
  __syncthreads();  // of the last row everything has been read
  if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = warp;
  __syncthreads();
  uint32_t all = 0;
  for (int w = 0; w < kThreads / 32; ++w) all = max(all, warp_amax[w]);
  return __uint_as_float(all << 16);
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

__device__ Nvfp4Block QuantizeBlock(const uint32_t (&words)[kBlockWords], GlobalScale global) {
  float x[kNvfp4Block];
#pragma unroll
  for (int i = 0; i < kBlockWords; ++i) {
    x[2 * i] = LowBf16(words[i]);
    x[2 * i + 1] = HighBf16(words[i]);
  }
  return QuantizeNvfp4Block(x, global);
}

__device__ void StoreDecoded(const uint32_t (&words)[kBlockWords], Bf16* out) {
  auto* to = reinterpret_cast<uint4*>(out);
  to[0] = make_uint4(words[0], words[1], words[2], words[3]);
  to[1] = make_uint4(words[4], words[5], words[6], words[7]);
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
    const BlockScaler scaler(global);
    for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
      uint32_t words[kBlockWords];
      LoadBlock(x + b * kNvfp4Block, words);
      if (arguments.codes != nullptr || arguments.block_scales != nullptr) {
        StoreBlock(arguments, row, b, QuantizeBlock(words, global));
      }
      RequantizeBlock(words, scaler, &stats.sum);
      if (arguments.decoded != nullptr) {
        StoreDecoded(words, arguments.decoded + row * arguments.k + b * kNvfp4Block);
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
