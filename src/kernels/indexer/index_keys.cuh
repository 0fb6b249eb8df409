// Index rows on their way to tensor cores: a warpgroup's tile of 64 keys, in registers as wgmma
// takes them for A. A thread has parts of two of them: rows 16 w + lane / 4 of its warp w, and 8
// more.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/device_step.h"
#include "kernels/indexer/index_query.cuh"
#include "numerics/e8m0.h"

namespace halfbyte {

inline constexpr int kKeyTile = 64;

__device__ __forceinline__ uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}

// Eight E2M1 codes as signed bytes: twice their values, shifted by 0 .. 3 bits.
__device__ __forceinline__ void SpreadCodes(uint32_t codes, int shift, uint32_t& low,
                                            uint32_t& high) {
  const uint32_t magnitudes = codes & 0x77777777u;
  // Bytes of all ones where a code's sign bit is set: PRMT repeats the upper bits of bytes.
  const uint32_t moved = codes << 4;
  const uint32_t negative[2] = {PickBytes(moved, codes, 0xd9c8), PickBytes(moved, codes, 0xfbea)};
  const uint32_t kept = PickBytes(0xf8fcfeff, 0, static_cast<uint32_t>(shift) * 0x1111);
  uint32_t* const out[2] = {&low, &high};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t selector = magnitudes >> 16 * i;
    const uint32_t plus = PickBytes(0x03020100, 0x0c080604, selector);
    const uint32_t minus = PickBytes(0xfdfeff00, 0xf4f8fafc, selector);
    *out[i] = ((plus & ~negative[i]) | (minus & negative[i])) << shift & kept;
  }
}

template <int kDim>
class KeyTile {
 public:
  static constexpr int kBlocks = kDim / 32;

  // Keys first .. first + 63 of a sequence, zeros from `end` on.
  __device__ __forceinline__ void Load(const DeviceRows& rows, const int32_t* table, int32_t first,
                                       int32_t end) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t i = first + 16 * warp + lane / 4 + 8 * r;
      const bool inside = i < end;
      const auto* codes =
          reinterpret_cast<const uint32_t*>(inside ? rows.main(table, i) : nullptr) + lane % 4;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) codes_[r][b] = inside ? codes[4 * b] : 0;
      scales_[r] = inside ? *reinterpret_cast<const uint32_t*>(rows.scales(table, i)) : 0x7f7f7f7fu;
    }
  }

  // Whether the joined form (index_query.cuh) holds for this thread's keys.
  __device__ __forceinline__ bool Joins() const {
    bool joins = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int least = Least(r);
      int most = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) most = max(most, Scale(r, b));
      joins = joins && most - least <= kJoinedSpread && least - 128 >= kJoinedLeast &&
              most - 128 <= kJoinedMost;
    }
    return joins;
  }

  // Block b as an operand of wgmma; joined: in units of the row's smallest scale.
  __device__ __forceinline__ void Operand(int b, bool joined, uint32_t (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      SpreadCodes(codes_[r][b], joined ? Scale(r, b) - Least(r) : 0, a[r], a[2 + r]);
    }
  }

  // The halved scale of block b of row r; the smallest one, if joined.
  __device__ __forceinline__ float HalfScale(int r, int b) const {
    return E8m0ToFloat(static_cast<uint8_t>(Scale(r, b))) * 0.5f;
  }
  __device__ __forceinline__ float JoinedScale(int r) const {
    return std::bit_cast<float>(static_cast<uint32_t>(Least(r) - 1) << 23);
  }

 private:
  __device__ __forceinline__ int Scale(int r, int b) const {
    return static_cast<int>(scales_[r] >> 8 * b & 0xff);
  }
  __device__ __forceinline__ int Least(int r) const {
    int least = 255;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) least = min(least, Scale(r, b));
    return least;
  }

  uint32_t codes_[2][kBlocks];  // words lane % 4 of the blocks of 16 bytes
  uint32_t scales_[2];          // E8M0 of the blocks
};

}  // namespace halfbyte
