#include <bit>
#include <cmath>

#include "device/cuda/launch.cuh"
#include "kernels/indexer/index_query.cuh"
#include "kernels/indexer/index_score_cuda.h"
#include "numerics/e2m1.h"
#include "numerics/e8m0.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kHeadsOfBlock = 8;
constexpr int kBlockLanes = kMxfp4Block / 4;

__device__ float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// Reductions over the lanes of a block, or of more.
__device__ float LargestOf(float x, int lanes) {
  for (int step = 1; step < lanes; step *= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
__device__ int LargestOf(int x, int lanes) {
  for (int step = 1; step < lanes; step *= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// RotatePairs (kernels/rope/rope.h) of four numbers of a head.
template <int kDim>
__device__ void Rotate(const DeviceRope& rope, int64_t position, int four, float (&x)[4]) {
  const int from = kDim - 2 * static_cast<int>(rope.pairs);
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int pair = (4 * four + i - from) / 2;
    if (4 * four + i < from) continue;
    const float c = rope.cos[position * rope.pairs + pair];
    const float s = rope.sin[position * rope.pairs + pair];
    const float even = x[i], odd = x[i + 1];
    x[i] = RoundToBf16(even * c - odd * s);
    x[i + 1] = RoundToBf16(even * s + odd * c);
  }
}

// Hadamard (kernels/kv_row/kv_row.h) of a head whose lanes hold four numbers each.
template <int kDim>
__device__ void Transform(int four, float (&x)[4]) {
  const auto butterfly = [](float& a, float& b) {
    const float sum = a + b;
    b = a - b;
    a = sum;
  };
  butterfly(x[0], x[1]);
  butterfly(x[2], x[3]);
  butterfly(x[0], x[2]);
  butterfly(x[1], x[3]);
#pragma unroll
  for (int half = 1; half < kDim / 4; half *= 2) {
    const float sign = (four & half) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (float& own : x) {
      const float other = __shfl_xor_sync(kAllLanes, own, half);
      own = __fmaf_rn(own, sign, other);  // rounds once: other - own or other + own
    }
  }
  const float factor = 1.0f / sqrtf(static_cast<float>(kDim));
#pragma unroll
  for (float& own : x) own *= factor;
}

// Twice the E2M1 number nearest to x, ties to the even code; 0 <= x <= 6, NaN gives 0.
__device__ int DoubledE2m1(float x) {
  if (x < 2) return __float2int_rn(x * 2);
  if (x < 4) return __float2int_rn(x) * 2;
  return __float2int_rn(x * 0.5f) * 4;
}

// What IndexQueryPacks::Pack (index_pack.h) makes of RoundIndexQuery's block of 32, four numbers of
// it. Codes are doubled E2M1 numbers, shifted so that the largest is at least 8.
struct QueryCodes {
  int codes[4];
  int exponent;  // of the halved scale
  bool finite;
  bool zero;
};
__device__ QueryCodes RoundToCodes(float (&x)[4]) {
  float amax = 0;
#pragma unroll
  for (float& own : x) {
    own = RoundToBf16(own);
    amax = fmaxf(amax, fabsf(own));
  }
  const int scale = static_cast<int>(Mxfp4BlockScale(LargestOf(amax, kBlockLanes))) - 127;
  const float factor = PowerOfTwo(-scale);
  QueryCodes out;
  int largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int magnitude = DoubledE2m1(fabsf(x[i]) * factor);
    largest = max(largest, magnitude);
    out.codes[i] = x[i] < 0 ? -magnitude : magnitude;
  }
  largest = LargestOf(largest, kBlockLanes);
  // The largest number is between 2^top and 2^(top + 1); scale 127 is that of infinity.
  const int top = scale + 31 - __clz(largest) - 1;
  out.finite = scale < 127 && top < 128;
  out.zero = out.finite && largest == 0;
  const int exponent = out.zero ? -126 : max(top - 2, -126);
  out.exponent = exponent - 1;
#pragma unroll
  for (int& code : out.codes) code = out.finite ? code * (1 << ((scale - exponent) & 3)) : 0;
  return out;
}

__device__ uint32_t PackBytes(const int (&codes)[4], int shift) {
  uint32_t bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bytes |= ((static_cast<uint32_t>(codes[i]) << shift) & 0xff) << 8 * i;
  return bytes;
}

// A block for eight heads of a token, kDim / 4 lanes for a head.
template <int kHeads, int kDim>
__global__ void __launch_bounds__(kHeadsOfBlock* kDim / 4)
    PackQueries(const IndexScoreArguments arguments) {
  using Packed = PackedQuery<kHeads>;
  constexpr int kLanes = kDim / 4;
  const int64_t token = arguments.first + blockIdx.x;
  const int64_t position = arguments.tokens.positions[token];
  std::byte* blockwise = arguments.packed + blockIdx.x * int64_t{Packed::kBytes};
  std::byte* joined = blockwise + Packed::kJoinedAt;
  auto* scales = reinterpret_cast<float*>(blockwise + Packed::kCodeBytes);
  auto* joined_weights = reinterpret_cast<float*>(joined + Packed::kCodeBytes);
  const int four = static_cast<int>(threadIdx.x) % kLanes;
  const int head =
      static_cast<int>(blockIdx.y) * kHeadsOfBlock + static_cast<int>(threadIdx.x) / kLanes;
  const auto heads = static_cast<int>(arguments.heads);
  LetNextStart();
  WaitForPrevious();
  if ((position + 1) / arguments.rate <= arguments.skip) return;
  float x[4] = {};
  float weight = 0;
  if (head < heads) {
    const ushort4 bits = *reinterpret_cast<const ushort4*>(
        arguments.queries + (token * heads + head) * kDim + 4 * four);
    x[0] = ToFloat(Bf16{bits.x});
    x[1] = ToFloat(Bf16{bits.y});
    x[2] = ToFloat(Bf16{bits.z});
    x[3] = ToFloat(Bf16{bits.w});
    weight = arguments.weights[token * heads + head] * arguments.weight_factor;
  }
  Rotate<kDim>(arguments.rope, position, four, x);
  Transform<kDim>(four, x);
  const QueryCodes block = RoundToCodes(x);

  constexpr int kNone = 1000;
  const int least = -LargestOf(block.zero ? -kNone : -block.exponent, kLanes);
  const int most = LargestOf(block.zero ? -kNone : block.exponent, kLanes);
  const int unit = least == kNone ? 0 : least;  // a head of zeros takes any
  const float size = fabsf(weight);
  const bool joins = (least == kNone || (most - least <= kJoinedSpread && least >= kJoinedLeast &&
                                         most <= kJoinedMost)) &&
                     (size == 0 || (size >= 0x1p-32f && size < 0x1p32f));

  const int at = CodesOfQuery(head, four);
  *reinterpret_cast<uint32_t*>(blockwise + at) = PackBytes(block.codes, 0);
  *reinterpret_cast<uint32_t*>(joined + at) =
      PackBytes(block.codes, joins && !block.zero ? block.exponent - unit : 0);
  if (four % kBlockLanes == 0) {
    scales[four / kBlockLanes * kHeads + head] =
        block.finite ? PowerOfTwo(block.exponent + 1) * 0.5f : NAN;
  }
  if (four == 0) scales[4 * kHeads + head] = weight;
  if (four == 0) joined_weights[head] = joins ? weight * PowerOfTwo(unit + 23) : 0.0f;
  const int all_join = __syncthreads_and(joins ? 1 : 0);
  if (threadIdx.x == 0) {
    auto* all = reinterpret_cast<int32_t*>(blockwise + Packed::kIsJoinedAt);
    all[blockIdx.y] = all_join != 0 ? 1 : 0;
  }
}

}  // namespace

int64_t PackedIndexQueryBytes(int64_t heads) {
  return heads <= 8 ? PackedQuery<8>::kBytes : PackedQuery<64>::kBytes;
}

cudaError_t LaunchPackIndexQueries(const IndexScoreArguments& arguments, cudaStream_t stream) {
  if (arguments.rope.pairs * 2 > arguments.dim) return cudaErrorInvalidValue;
  return LaunchForShape(arguments.heads, arguments.dim, [&]<int kHeads, int kDim>() {
    if (arguments.count == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(arguments.count), kHeads / kHeadsOfBlock);
    const LaunchShape shape{grid, kHeadsOfBlock * kDim / 4};
    return LaunchDependent(PackQueries<kHeads, kDim>, shape, stream, arguments);
  });
}

}  // namespace halfbyte
