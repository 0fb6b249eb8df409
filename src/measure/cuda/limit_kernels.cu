#include "device/cuda/launch.cuh"
#include "measure/cuda/limit_kernels.h"

namespace halfbyte {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 132 * 2;

// Data that is used once: past the L1 cache.
__device__ uint4 LoadOnce(const uint4* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
}

__global__ void __launch_bounds__(kThreads)
    Read(const uint4* memory, int64_t count, uint32_t* sink) {
  constexpr int kLoads = 8;  // on their way at the same time
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 four[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) four[j] = LoadOnce(memory + i + j * stride);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) sum ^= four[j].x ^ four[j].y ^ four[j].z ^ four[j].w;
  }
  for (; i < count; i += stride) {
    const uint4 four = LoadOnce(memory + i);
    sum ^= four.x ^ four.y ^ four.z ^ four.w;
  }
  // Never true of data that is not made for it, which the compiler cannot know.
  if (sum == 0x12345678u) *sink = sum;
}

__global__ void __launch_bounds__(kThreads)
    FillBf16(uint16_t* memory, int64_t count, uint32_t seed) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + seed;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    // Sign and mantissa random, exponent 126 or 127.
    memory[i] = static_cast<uint16_t>((x & 0x80ffu) | 0x3f00u);
  }
}

}  // namespace

cudaError_t LaunchRead(const void* memory, int64_t bytes, uint32_t* sink, cudaStream_t stream) {
  return LaunchKernel(Read, {kBlocks, kThreads}, stream, static_cast<const uint4*>(memory),
                      bytes / 16, sink);
}

cudaError_t LaunchFillBf16(void* memory, int64_t count, uint32_t seed, cudaStream_t stream) {
  return LaunchKernel(FillBf16, {kBlocks, kThreads}, stream, static_cast<uint16_t*>(memory), count,
                      seed);
}

}  // namespace halfbyte
