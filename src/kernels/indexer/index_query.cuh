// A packed query of one token, in global memory as it goes to shared memory: integer codes of all
// heads (padded to 8 or 64 of them), a head's in a row of 128 bytes, as wgmma takes them for B
// (rows in atoms of eight, a row's eight pieces of 16 bytes exchanged by its number), then fp32
// numbers of heads. It has two forms:
//   blockwise  codes are twice the numbers over their block's scale; scales (halved) [4, heads],
//              weights [heads]. For any keys, each block a product of its own.
//   joined     codes are multiples of the head's smallest block scale, so that all blocks are one
//              integer product; weights times that scale and 2^23 [heads]. For queries and keys
//              whose scales are near each other and far from the ends of fp32.
// Within a block of 32, the eight elements of a key's 32-bit word of codes are columns 4 j .. 4 j +
// 3 and 16 + 4 j .. 16 + 4 j + 3 of word j.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace halfbyte {

// Joined scales lie within a factor of 2^kJoinedSpread: 12 << 3 still is a signed byte.
inline constexpr int kJoinedSpread = 3;
// Exponents of joined scales, those of halved keys and queries alike, and of their weights. Then
// every product and sum is a multiple of 2^-119 and less than 2^121, so that taking powers of two
// out of the sum changes no rounding.
inline constexpr int kJoinedLeast = -32;
inline constexpr int kJoinedMost = 31;

template <int kHeads>
struct PackedQuery {
  static constexpr int kCodeBytes = kHeads * 128;
  static constexpr int kBlockwiseBytes = kCodeBytes + 5 * kHeads * 4;
  static constexpr int kJoinedBytes = kCodeBytes + kHeads * 4;
  // Both forms, then whether the joined one holds for each eight heads (int32).
  static constexpr int kJoinedAt = kBlockwiseBytes;
  static constexpr int kIsJoinedAt = kJoinedAt + kJoinedBytes;
  static constexpr int kBytes = (kIsJoinedAt + kHeads / 8 * 4 + 127) / 128 * 128;
};

// Whether the joined form holds for all heads.
template <int kHeads>
__device__ inline bool QueryJoins(const std::byte* packed) {
  const auto* joins = reinterpret_cast<const int32_t*>(packed + PackedQuery<kHeads>::kIsJoinedAt);
  int32_t all = 1;
#pragma unroll
  for (int i = 0; i < kHeads / 8; ++i) all &= joins[i];
  return all != 0;
}

// Where elements 4 `four` .. 4 `four` + 3 of a head stand among the codes.
__host__ __device__ constexpr int CodesOfQuery(int head, int four) {
  const int piece = four / 8 * 2 + four % 2;
  return head / 8 * 1024 + head % 8 * 128 + ((piece ^ head % 8) * 16) + four % 8 / 2 * 4;
}

// launch.operator()<heads, dim>() for the padded heads; cudaErrorInvalidValue for other shapes.
template <class Launch>
cudaError_t LaunchForShape(int64_t heads, int64_t dim, const Launch& launch) {
  if (heads < 1 || heads > 64) return cudaErrorInvalidValue;
  const bool few = heads <= 8;
  if (dim == 128) {
    return few ? launch.template operator()<8, 128>() : launch.template operator()<64, 128>();
  }
  if (dim == 64) {
    return few ? launch.template operator()<8, 64>() : launch.template operator()<64, 64>();
  }
  return cudaErrorInvalidValue;
}

}  // namespace halfbyte
