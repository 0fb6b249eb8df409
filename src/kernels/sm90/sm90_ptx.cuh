// The instructions of sm_90a that the GEMMs are made of, one function each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace halfbyte::sm90 {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Barriers in shared memory: `count` arrivals and all announced bytes complete a phase.
__device__ __forceinline__ void BarrierInit(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
               : "memory");
}
__device__ __forceinline__ void BarrierArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Returns when the phase of this parity is complete. The loop is hidden from the compiler, which
// would put convergence barriers around it.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies from global to shared memory that complete on a barrier. Addresses and sizes are multiples
// of 16.
__device__ __forceinline__ void BulkLoad(uint32_t to, const void* from, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// A box of a matrix that `map` describes (cuTensorMapEncodeTiled), from these coordinates on.
__device__ __forceinline__ void TensorLoad(uint32_t to, const void* map, int x0, int x1, int x2,
                                           int x3, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void PrefetchTensorMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// For what nobody reads again: weights give way in the L2 cache to everything else.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void BulkLoadHinted(uint32_t to, const void* from, uint32_t bytes,
                                               uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Programmatic dependent launch: the kernels before this one have ended and their writes are seen;
// and the kernel after this one may start.
__device__ __forceinline__ void WaitForPredecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void LetSuccessorStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// What others wrote by ordinary stores, before a bulk copy reads it.
__device__ __forceinline__ void GlobalProxyFence() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// A number that all lanes of the warp have, told so that the compiler sees it: what follows from it
// is computed once per warp, in uniform registers.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

__device__ __forceinline__ uint32_t MultiplyBf16Pair(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// 2^x and 1 / x, within two units of fp32; NaN stays NaN.
__device__ __forceinline__ float FastExp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
__device__ __forceinline__ float FastReciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// Of the math warpgroups.
template <int kThreads>
__device__ __forceinline__ void MathBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// Of one of them.
__device__ __forceinline__ void WarpgroupBarrier() {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ uint4 LoadShared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadShared4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ float2 LoadShared8(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void StoreShared8(uint32_t address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void StoreShared4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
// An 8 x 8 matrix of 16-bit numbers over the lanes of a warp, transposed.
__device__ __forceinline__ uint32_t Transpose8x8(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}
// NaN stays NaN.
__device__ __forceinline__ float MinNan(float a, float b) {
  float out;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}
__device__ __forceinline__ float MaxNan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most kPending groups are unfinished.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Atoms of 8 rows x 128 bytes with exchanged pieces (sm90_shapes.h), one after the other.
__device__ __forceinline__ uint64_t WgmmaDescriptor(uint32_t address) {
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

}  // namespace halfbyte::sm90
