// The kernel of tensor-core products (sm90_dense.h). A block works off items: up to W strips of one
// weight, one of its K segments or all of them, and a tile of N tokens. One warp copies boxes of x,
// a warp for each of W warpgroups copies that one's blocks of weights, and each warpgroup
// multiplies its strip with the tokens that all share.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <sm90_wgmma.cuh>  // generated: sm90_wgmma.cmake

#include "kernels/sm90/sm90_ptx.cuh"
#include "kernels/sm90/sm90_ring.cuh"
#include "kernels/sm90_dense/dense_layout.h"
#include "kernels/sm90_dense/dense_work.h"
#include "kernels/sm90_dense/sm90_dense.h"

namespace halfbyte::sm90 {

// What belongs to a part of the work.
struct DenseTarget {
  const uint8_t* packed;
  void* y;
  DenseOutput output;
};

struct DenseOperands {
  CUtensorMap x;  // [groups][columns / 64][tokens][64]
  DenseWork work;
  DenseTarget targets[kMaxDenseProducts];
  float* partials;    // [tiles][strips][segments][64 * N], if segments are apart
  int32_t* arrivals;  // [tiles][strips], zero between launches
};

template <int N_, int W_, int kTokenGroups_, int kTokenStages_, int kWeightSlots_, int kPerSm_>
struct DenseConfig {
  static constexpr int N = N_;
  static constexpr int W = W_;
  static constexpr int kTokenGroups = kTokenGroups_;       // of 64 columns in a token stage
  static constexpr uint32_t kTokenStages = kTokenStages_;  // a power of two
  static constexpr uint32_t kWeightSlots = kWeightSlots_;  // of a warpgroup
  static constexpr int kPerSm = kPerSm_;  // blocks: the next kernel's weights stream in meanwhile
  static_assert(W <= 3, "one producer warp each, and one for tokens");

  static constexpr int kThreads = 128 * (W + 1);
  static constexpr uint32_t kTokenGroupBytes = N * 128;
  static constexpr uint32_t kTokenStageBytes = kTokenGroups * kTokenGroupBytes;
  static constexpr uint32_t kTokens = 0;
  static constexpr uint32_t kWeights = kTokenStages * kTokenStageBytes;
  static constexpr uint32_t kScales = kWeights + W * kWeightSlots * kDenseBlockBytes;
  static constexpr uint32_t kTokenBarriers = kScales + W * kWeightSlots * kDenseScaleBytes;
  static constexpr uint32_t kWeightBarriers = kTokenBarriers + 16 * kTokenStages;
  static constexpr uint32_t kLast = kWeightBarriers + 16 * W * kWeightSlots;
  static constexpr uint32_t kSharedBytes = kLast + W * 32 * 4;  // a warp's words each
  static_assert((kSharedBytes + 1024) * kPerSm <= 233472);
  // Of the 65,536 registers; what the producers give, the others take.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kMathRegisters = kPerSm == 2 ? 104 : 232;
};

// The ring of a warpgroup's blocks, as its producer or the warpgroup goes through it.
template <class Config>
class WeightRing {
 public:
  __device__ __forceinline__ explicit WeightRing(int warpgroup)
      : base_(static_cast<uint32_t>(warpgroup) * Config::kWeightSlots) {}
  static __device__ __forceinline__ void Init() {
    for (uint32_t i = 0; i < Config::W * Config::kWeightSlots; ++i) {
      BarrierInit(Barrier(i), 1);
      BarrierInit(Barrier(i) + 8, 4);
    }
  }
  __device__ __forceinline__ uint32_t Block() const {
    return SharedAddress(shared_memory) + Config::kWeights +
           (base_ + slot_) * static_cast<uint32_t>(kDenseBlockBytes);
  }
  __device__ __forceinline__ uint32_t Scales() const {
    return SharedAddress(shared_memory) + Config::kScales +
           (base_ + slot_) * static_cast<uint32_t>(kDenseScaleBytes);
  }
  __device__ __forceinline__ uint32_t Full() const { return Barrier(base_ + slot_); }
  __device__ __forceinline__ uint32_t Empty() const { return Full() + 8; }
  __device__ __forceinline__ uint32_t EmptyOfPrevious() const {
    return Barrier(base_ + (slot_ == 0 ? Config::kWeightSlots : slot_) - 1) + 8;
  }
  __device__ __forceinline__ void WaitFull() const { BarrierWait(Full(), round_); }
  __device__ __forceinline__ void WaitEmpty() const { BarrierWait(Empty(), round_ ^ 1); }
  __device__ __forceinline__ void Advance() {
    if (++slot_ == Config::kWeightSlots) {
      slot_ = 0;
      round_ ^= 1;
    }
  }

 private:
  static __device__ __forceinline__ uint32_t Barrier(uint32_t place) {
    return SharedAddress(shared_memory) + Config::kWeightBarriers + 16 * place;
  }
  uint32_t base_;
  uint32_t slot_ = 0;
  uint32_t round_ = 0;  // its parity
};

template <class Config>
using DenseTokenRing = Ring<Config::kTokenBarriers, Config::kTokenStages>;
template <class Config>
__device__ __forceinline__ uint32_t TokenStage(uint32_t index) {
  return SharedAddress(shared_memory) + Config::kTokens +
         index % Config::kTokenStages * Config::kTokenStageBytes;
}

template <class Config>
__device__ __forceinline__ void CopyDenseWeights(const DenseOperands& operands, int warpgroup) {
  const uint64_t policy = EvictFirst();
  WeightRing<Config> ring(warpgroup);
  for (int index = static_cast<int>(blockIdx.x); index < operands.work.items;
       index += static_cast<int>(gridDim.x)) {
    const DenseItem item = GetDenseItem(operands.work, index);
    if (warpgroup >= item.count) continue;
    const DensePart& part = operands.work.parts[item.part];
    const BlockRange blocks = BlocksOf(part, item.segment, item.segment_end);
    const int64_t first =
        int64_t{item.group * part.strips_of_group + item.strip + warpgroup} * part.k_blocks;
    const uint8_t* const packed = operands.targets[item.part].packed;
    const uint32_t scale_bytes = part.fp8 ? kDenseScaleBytes : 0;
#pragma unroll 1
    for (int kb = blocks.begin; kb < blocks.end; ++kb, ring.Advance()) {
      ring.WaitEmpty();
      BarrierArriveExpecting(ring.Full(), kDenseBlockBytes + scale_bytes);
      const uint8_t* const from = packed + (first + kb) * kDenseBlockBytes;
      if (operands.work.tiles == 1) {
        BulkLoadHinted(ring.Block(), from, kDenseBlockBytes, ring.Full(), policy);
      } else {
        BulkLoad(ring.Block(), from, kDenseBlockBytes, ring.Full());
      }
      if (scale_bytes != 0) {
        BulkLoad(ring.Scales(), packed + part.scales_offset + (first + kb) * kDenseScaleBytes,
                 scale_bytes, ring.Full());
      }
    }
  }
}

// Stages that an item takes: all of its blocks' columns, those that fill the last block included.
template <class Config>
__device__ __forceinline__ int StagesOf(const DensePart& part, const BlockRange& blocks) {
  const int groups = part.fp8 ? 4 : 2;
  return (blocks.end - blocks.begin) * (groups / Config::kTokenGroups);
}

template <class Config>
__device__ __forceinline__ void CopyDenseTokens(const DenseOperands& operands) {
  using Tokens = DenseTokenRing<Config>;
  PrefetchTensorMap(&operands.x);
  uint32_t index = 0;
  for (int i = static_cast<int>(blockIdx.x); i < operands.work.items;
       i += static_cast<int>(gridDim.x)) {
    const DenseItem item = GetDenseItem(operands.work, i);
    const DensePart& part = operands.work.parts[item.part];
    const int stages = StagesOf<Config>(part, BlocksOf(part, item.segment, item.segment_end));
    int group = item.segment * static_cast<int>(kSegmentK / kGroupK);
    if (index == 0) {
      WaitForPredecessor();
      GlobalProxyFence();
    }
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage, ++index, group += Config::kTokenGroups) {
      Tokens::WaitEmpty(index);
      BarrierArriveExpecting(Tokens::Full(index), Config::kTokenStageBytes);
      // Beyond the last token and the last column of the group come zeros.
      TensorLoad(TokenStage<Config>(index), &operands.x, 0, item.tile * Config::N, group,
                 item.group, Tokens::Full(index));
    }
  }
}

// What a math warpgroup knows of the rings and of its part.
template <class Config>
struct DenseMath {
  WeightRing<Config> weights;
  uint32_t stages = 0;    // of tokens, passed through the ring
  uint32_t arrivals = 0;  // of this thread when it gives a token stage back; 0: not elected
  bool elected = false;

  __device__ __forceinline__ void ReleaseStage(uint32_t stage) const {
    if (arrivals != 0) BarrierArrive(DenseTokenRing<Config>::Empty(stage), arrivals);
  }
  __device__ __forceinline__ void ReleaseWeights(uint32_t barrier) const {
    __syncwarp();
    if (elected) BarrierArrive(barrier, 1);
  }
};

// Before and after the products of one group of 64 columns; `group` counts within a block. What ran
// before the last group of products has ended by then.
template <class Config>
__device__ __forceinline__ uint64_t BeginDenseGroup(const DenseMath<Config>& math, int group) {
  if (group % Config::kTokenGroups == 0) DenseTokenRing<Config>::WaitFull(math.stages);
  return WgmmaDescriptor(TokenStage<Config>(math.stages)) +
         group % Config::kTokenGroups * (Config::kTokenGroupBytes / 16);
}
template <class Config>
__device__ __forceinline__ void EndDenseGroup(DenseMath<Config>& math, int group, bool first) {
  if (group % Config::kTokenGroups == 0 && !first) math.ReleaseStage(math.stages - 1);
  if (group % Config::kTokenGroups == Config::kTokenGroups - 1) ++math.stages;
}

// A thread's fragments for 64 columns: woven words, times the scale of its 128 x 128.
__device__ __forceinline__ void DecodeFp8Step(uint32_t upper, uint32_t lower, uint32_t factor,
                                              uint32_t* fragment) {
  fragment[0] = MultiplyBf16Pair(UnweaveFp8First(upper), factor);
  fragment[1] = MultiplyBf16Pair(UnweaveFp8First(lower), factor);
  fragment[2] = MultiplyBf16Pair(UnweaveFp8Second(upper), factor);
  fragment[3] = MultiplyBf16Pair(UnweaveFp8Second(lower), factor);
}
__device__ __forceinline__ void DecodeFp8Group(const uint4 (&words)[2], uint32_t factor,
                                               uint32_t (&fragments)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    DecodeFp8Step(words[half].x, words[half].y, factor, fragments + 8 * half);
    DecodeFp8Step(words[half].z, words[half].w, factor, fragments + 8 * half + 4);
  }
}

// Blocks of one segment: accumulators[64, N] = strip * tokens. FP8: a group is decoded while the
// products of the one before it run.
template <class Config>
__device__ __forceinline__ void MultiplyFp8(int blocks, DenseMath<Config>& math,
                                            float (&accumulators)[Config::N / 2]) {
  uint32_t fragments[2][16];
#pragma unroll 1
  for (int kb = 0; kb < blocks; ++kb) {
    math.weights.WaitFull();
    const uint32_t block = math.weights.Block() + threadIdx.x % 128 * 16;
    const float2 factors = LoadShared8(math.weights.Scales());
    uint4 words[2] = {LoadShared16(block), LoadShared16(block + 2048)};
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      uint32_t(&fragment)[16] = fragments[group % 2];
      DecodeFp8Group(words, __float_as_uint(group < 2 ? factors.x : factors.y), fragment);
      if (group + 1 < 4) {
        words[0] = LoadShared16(block + (group + 1) * 4096);
        words[1] = LoadShared16(block + (group + 1) * 4096 + 2048);
      } else {
        math.ReleaseWeights(math.weights.Empty());
      }
      const uint64_t tokens = BeginDenseGroup<Config>(math, group);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Wgmma<Config::N>::Run(accumulators, fragment + 4 * step, tokens + 2 * step);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      EndDenseGroup<Config>(math, group, kb == 0 && group == 0);
    }
    math.weights.Advance();
  }
}
// bf16: the tensor core reads the weights where they lie.
template <class Config>
__device__ __forceinline__ void MultiplyBf16(int blocks, DenseMath<Config>& math,
                                             float (&accumulators)[Config::N / 2]) {
#pragma unroll 1
  for (int kb = 0; kb < blocks; ++kb) {
    math.weights.WaitFull();
    const uint64_t block = WgmmaDescriptor(math.weights.Block());
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const uint64_t tokens = BeginDenseGroup<Config>(math, group);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Wgmma<Config::N>::Run(accumulators, block + group * (8 * kAtomBytes / 16) + 2 * step,
                              tokens + 2 * step);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (group == 0 && kb != 0) math.ReleaseWeights(math.weights.EmptyOfPrevious());
      EndDenseGroup<Config>(math, group, kb == 0 && group == 0);
    }
    math.weights.Advance();
  }
}
template <class Config, bool kFp8>
__device__ __forceinline__ void MultiplySegment(int blocks, DenseMath<Config>& math,
                                                float (&accumulators)[Config::N / 2]) {
#pragma unroll
  for (int i = 0; i < Config::N / 2; ++i) accumulators[i] = 0;
  if constexpr (kFp8) {
    MultiplyFp8<Config>(blocks, math, accumulators);
  } else {
    MultiplyBf16<Config>(blocks, math, accumulators);
  }
  WgmmaWait<0>();
  if constexpr (!kFp8) math.ReleaseWeights(math.weights.EmptyOfPrevious());
  math.ReleaseStage(math.stages - 1);
#pragma unroll
  for (int i = 0; i < Config::N / 2; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

// Thread 32 w + 4 g + t has, for j < N / 8 and e in 0, 1, rows 16 w + 2 g and the next one of its
// strip at token 8 j + 2 t + e, in sums[4 j + e] and sums[4 j + 2 + e].
template <int N>
__device__ __forceinline__ void StoreDense(const DensePart& part, const DenseTarget& target,
                                           const DenseItem& item, int strip, int tokens,
                                           const float (&sums)[N / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int in_group =
      strip * static_cast<int>(kStripRows) + thread / 32 * 16 + thread % 32 / 4 * 2;
  if (in_group >= part.rows_of_group) return;
  const int first = item.tile * N + thread % 4 * 2;
  const int64_t at = int64_t{first} * part.rows + item.group * part.rows_of_group + in_group;
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (first + 8 * j + e >= tokens) continue;
      const int64_t to = at + int64_t{8 * j + e} * part.rows;
      const __nv_bfloat162 rounded = __floats2bfloat162_rn(sums[4 * j + e], sums[4 * j + 2 + e]);
      if (target.output == DenseOutput::kBf16) {
        *reinterpret_cast<__nv_bfloat162*>(static_cast<Bf16*>(target.y) + to) = rounded;
      } else {
        *reinterpret_cast<float2*>(static_cast<float*>(target.y) + to) =
            target.output == DenseOutput::kF32 ? float2{sums[4 * j + e], sums[4 * j + 2 + e]}
                                               : __bfloat1622float2(rounded);
      }
    }
  }
}

// Of a strip and a tile of an item.
__device__ __forceinline__ int64_t MeetingPlace(const DenseOperands& operands,
                                                const DensePart& part, const DenseItem& item,
                                                int strip) {
  return int64_t{item.tile} * operands.work.strips + part.first_strip +
         item.group * part.strips_of_group + strip;
}
// A thread's numbers of the first segment; those of the next lie 64 * N further.
template <int N>
__device__ __forceinline__ float* PartialsAt(const DenseOperands& operands, int64_t place) {
  return operands.partials + place * operands.work.segments * (kStripRows * N) +
         threadIdx.x % 128 * 4;
}

// Leaves a segment's sum in memory.
template <int N>
__device__ __forceinline__ void LeaveSegment(const DenseOperands& operands, const DensePart& part,
                                             const DenseItem& item, int strip,
                                             const float (&sums)[N / 2]) {
  float* const to = PartialsAt<N>(operands, MeetingPlace(operands, part, item, strip)) +
                    item.segment * (kStripRows * N);
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    __stcg(reinterpret_cast<float4*>(to + i * 512),
           float4{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]});
  }
}
// All of a strip's segments, ascending.
template <int N>
__device__ __forceinline__ void AddSegments(const float* partials, int segments,
                                            float (&sums)[N / 2]) {
  // As many at once as there are registers for, or each would wait for the one before it.
  constexpr int kParts = N / 8;
  constexpr int kAtOnce = kParts == 1 ? 8 : kParts == 2 ? 4 : kParts == 8 ? 2 : 1;
#pragma unroll 1
  for (int first = 0; first < segments; first += kAtOnce) {
    float4 loaded[kAtOnce][kParts];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      if (first + s >= segments) break;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        loaded[s][i] = __ldcg(
            reinterpret_cast<const float4*>(partials + (first + s) * (kStripRows * N) + i * 512));
      }
    }
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      if (first + s >= segments) break;
      const bool is_first = first + s == 0;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const float4& next = loaded[s][i];
        sums[4 * i] = is_first ? next.x : sums[4 * i] + next.x;
        sums[4 * i + 1] = is_first ? next.y : sums[4 * i + 1] + next.y;
        sums[4 * i + 2] = is_first ? next.z : sums[4 * i + 2] + next.z;
        sums[4 * i + 3] = is_first ? next.w : sums[4 * i + 3] + next.w;
      }
    }
  }
}

// After its last item a warpgroup says of each that its segment is there. Whoever comes last to a
// strip adds all of them. Lane j of the first warp speaks for the j-th item of the block: one after
// the other would cost a way to memory each.
template <class Config>
__device__ __forceinline__ void MeetSegments(const DenseOperands& operands, int warpgroup) {
  const DenseWork& work = operands.work;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int step = static_cast<int>(gridDim.x);
  const uint32_t words = SharedAddress(shared_memory) + Config::kLast + warpgroup * 128;
#pragma unroll 1
  for (int begin = static_cast<int>(blockIdx.x); begin < work.items; begin += 32 * step) {
    WarpgroupBarrier();
    if (thread < 32) {
      const int index = begin + thread * step;
      uint32_t last = 0;
      if (index < work.items) {
        const DenseItem item = GetDenseItem(work, index);
        if (warpgroup < item.count) {
          const int64_t place =
              MeetingPlace(operands, work.parts[item.part], item, item.strip + warpgroup);
          __threadfence();
          last = atomicAdd(operands.arrivals + place, 1) + 1 == work.segments ? 1 : 0;
          if (last != 0) operands.arrivals[place] = 0;
          __threadfence();
        }
      }
      StoreShared4(words + 4 * thread, last);
    }
    WarpgroupBarrier();
#pragma unroll 1
    for (int j = 0; j < 32 && begin + j * step < work.items; ++j) {
      if (LoadShared4(words + 4 * j) == 0) continue;
      const DenseItem item = GetDenseItem(work, begin + j * step);
      const DensePart& part = work.parts[item.part];
      const int strip = item.strip + warpgroup;
      float sums[Config::N / 2] = {};
      AddSegments<Config::N>(
          PartialsAt<Config::N>(operands, MeetingPlace(operands, part, item, strip)), work.segments,
          sums);
      StoreDense<Config::N>(part, operands.targets[item.part], item, strip, work.tokens, sums);
    }
  }
}

// The strip of a warpgroup, from weights to y, or to the memory where segments meet.
template <class Config, bool kFp8>
__device__ __forceinline__ void RunDenseStrip(const DenseOperands& operands, const DenseItem& item,
                                              int warpgroup, DenseMath<Config>& math) {
  const DensePart& part = operands.work.parts[item.part];
  float sums[Config::N / 2] = {};
#pragma unroll 1
  for (int segment = item.segment; segment < item.segment_end; ++segment) {
    float accumulators[Config::N / 2];
    const BlockRange blocks = BlocksOf(part, segment, segment + 1);
    MultiplySegment<Config, kFp8>(blocks.end - blocks.begin, math, accumulators);
#pragma unroll
    for (int i = 0; i < Config::N / 2; ++i) {
      sums[i] = segment == item.segment ? accumulators[i] : sums[i] + accumulators[i];
    }
  }
  const int strip = item.strip + warpgroup;
  WaitForPredecessor();
  if (operands.work.apart) {
    LeaveSegment<Config::N>(operands, part, item, strip, sums);
  } else {
    StoreDense<Config::N>(part, operands.targets[item.part], item, strip, operands.work.tokens,
                          sums);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kPerSm)
    DenseKernel(const __grid_constant__ DenseOperands operands) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    WeightRing<Config>::Init();
    DenseTokenRing<Config>::Init(4 * Config::W);
    BarrierInitFence();
  }
  __syncthreads();
  LetSuccessorStart();

  if (warp < 4) {
    GiveRegisters<Config::kProducerRegisters>();
    if (warp == 0 && lane == 0) {
      CopyDenseTokens<Config>(operands);
    } else if (warp > 0 && warp <= Config::W && lane == 0) {
      CopyDenseWeights<Config>(operands, warp - 1);
    }
  } else {
    TakeRegisters<Config::kMathRegisters>();
    const int warpgroup = Uniform(warp / 4 - 1);
    DenseMath<Config> math{WeightRing<Config>(warpgroup)};
    math.elected = lane == 0;
    for (int index = static_cast<int>(blockIdx.x); index < operands.work.items;
         index += static_cast<int>(gridDim.x)) {
      const DenseItem item = GetDenseItem(operands.work, index);
      const DensePart& part = operands.work.parts[item.part];
      // The first warpgroup gives token stages back for those that have no strip.
      math.arrivals = lane != 0 ? 0 : warpgroup == 0 ? 1 + Config::W - item.count : 1;
      if (warpgroup >= item.count) {
        math.stages += StagesOf<Config>(part, BlocksOf(part, item.segment, item.segment_end));
      } else if (part.fp8) {
        RunDenseStrip<Config, true>(operands, item, warpgroup, math);
      } else {
        RunDenseStrip<Config, false>(operands, item, warpgroup, math);
      }
      // Nobody runs ahead of a ring: a parity tells one phase from the next, not from later ones.
      if (item.count < Config::W) MathBarrier<128 * Config::W>();
    }
    if (operands.work.apart) MeetSegments<Config>(operands, warpgroup);
  }
}

}  // namespace halfbyte::sm90
