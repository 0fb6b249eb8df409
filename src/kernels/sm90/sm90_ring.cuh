// Rings of places in shared memory through which a kernel's data pass.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/sm90/sm90_ptx.cuh"

namespace halfbyte::sm90 {

// The shared memory of a block; its offset in the window of shared memory is 1,024, the first that
// is free, so that stages and barriers are constants.
extern __shared__ __align__(1024) uint8_t shared_memory[];

// A ring of places in shared memory with a full and an empty barrier each.
template <uint32_t kBarriers, uint32_t kPlaces>
struct Ring {
  static __device__ __forceinline__ uint32_t Full(uint32_t index) {
    return SharedAddress(shared_memory) + kBarriers + 8 * (index % kPlaces);
  }
  static __device__ __forceinline__ uint32_t Empty(uint32_t index) {
    return Full(index) + 8 * kPlaces;
  }
  static __device__ __forceinline__ void Init(uint32_t consumers) {
    for (uint32_t i = 0; i < kPlaces; ++i) {
      BarrierInit(Full(i), 1);
      BarrierInit(Empty(i), consumers);
    }
  }
  // Of the index-th thing that passes through the ring.
  static __device__ __forceinline__ void WaitFull(uint32_t index) {
    BarrierWait(Full(index), index / kPlaces % 2);
  }
  static __device__ __forceinline__ void WaitEmpty(uint32_t index) {
    BarrierWait(Empty(index), index / kPlaces % 2 ^ 1);
  }
};

}  // namespace halfbyte::sm90
