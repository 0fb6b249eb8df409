// The keys of a token: which rows of the KV cache they are, and how 64 of them become a tile of
// bf16 numbers in shared memory.
//
// A tile is groups of 64 channels, [groups][64 keys][128 bytes], the eight pieces of 16 bytes of a
// key exchanged by its number (piece c of key k lies at c ^ k % 8): what wgmma reads with keys as
// rows (scores) and, transposed, with channels as columns (values). Channels and keys that do not
// exist are zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention/attention_cuda.h"

namespace halfbyte::attention {

inline constexpr int kTileHeads = 64;
inline constexpr int kTileKeys = 64;
inline constexpr uint32_t kGroupBytes = 64 * 128;

template <int kHeadDim_, int kRopeDim_>
struct Dims {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRopeDim = kRopeDim_;
  static constexpr int kFp8Dim = kHeadDim - kRopeDim;
  static constexpr int kGroups = kHeadDim / 64;
  static constexpr uint32_t kTileBytes = kGroups * kGroupBytes;
};

struct RowAddress {
  const std::byte* main = nullptr;  // null: no such key
  const std::byte* scales = nullptr;
};

// The list of a token at a position (not of padding).
class KeyList {
 public:
  __device__ __forceinline__ KeyList(const AttentionArguments& a, int token, int position)
      : arguments_(a) {
    const int64_t sequence = a.tokens.sequences[token];
    const int start = a.sequences.replay_starts[sequence];
    begin_ = max(start, position + 1 - static_cast<int>(a.window));
    window_count_ = position + 1 - begin_;
    window_pages_ = a.sequences.window_pages + sequence * a.sequences.window_stride;
    blocks_ = a.sequences.context_blocks + sequence * a.sequences.context_stride;
    int entries = 0;
    if (a.rate != 0) {
      entries =
          static_cast<int>(static_cast<uint32_t>(position + 1) / static_cast<uint32_t>(a.rate));
    }
    if (a.selected != nullptr) {
      selected_ = a.selected + token * a.selected_stride;
      entries = a.selected_counts[token];
    }
    count_ = window_count_ + entries;
  }

  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int tiles() const { return (count_ + kTileKeys - 1) / kTileKeys; }

  // In two steps, as each reads memory: of the i-th key the number of its row, then where that is.
  __device__ __forceinline__ int Row(int i) const {
    if (i < window_count_) return begin_ + i;
    if (selected_ == nullptr || i >= count_) return i - window_count_;
    return __ldcg(selected_ + i - window_count_);
  }
  __device__ __forceinline__ RowAddress Address(int i, int row) const {
    if (i >= count_) return {};
    return i < window_count_ ? In(arguments_.window_rows, window_pages_, row)
                             : In(arguments_.entry_rows, blocks_, row);
  }

 private:
  static __device__ __forceinline__ RowAddress In(const DeviceRows& rows, const int32_t* table,
                                                  int row) {
    const auto per_page = static_cast<uint32_t>(rows.rows_per_page);
    const uint32_t page = static_cast<uint32_t>(row) / per_page;
    const int64_t within = static_cast<uint32_t>(row) - page * per_page;
    const std::byte* begin = rows.pool + __ldcg(table + page) * rows.page_bytes();
    return {begin + within * rows.main_bytes,
            begin + rows.rows_per_page * rows.main_bytes + within * rows.scale_bytes};
  }

  const AttentionArguments& arguments_;
  const int32_t* window_pages_;
  const int32_t* blocks_;
  const int32_t* selected_ = nullptr;
  int begin_;
  int window_count_;
  int count_;
};

__device__ __forceinline__ uint32_t MultiplyBf16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// Sixteen channels of a row as they are stored: 16 bytes of codes, or 32 of bf16.
struct RowPiece {
  uint4 first{};
  uint4 second{};
};

template <class D>
__device__ __forceinline__ RowPiece LoadPiece(const RowAddress& row, int channel) {
  RowPiece piece;
  if (row.main == nullptr) return piece;
  if (channel < D::kFp8Dim) {
    piece.first = __ldcg(reinterpret_cast<const uint4*>(row.main + channel));
  } else {
    const auto* rotary = reinterpret_cast<const uint4*>(row.main + 2 * channel - D::kFp8Dim);
    piece.first = __ldcg(rotary);
    piece.second = __ldcg(rotary + 1);
  }
  return piece;
}
__device__ __forceinline__ uint2 LoadScales(const RowAddress& row) {
  if (row.scales == nullptr) return {};
  return __ldcg(reinterpret_cast<const uint2*>(row.scales));
}
__device__ __forceinline__ uint32_t ScaleOf(const uint2& scales, int group) {
  return (group < 4 ? scales.x : scales.y) >> (group % 4 * 8) & 0xff;
}

// Four E4M3 codes as bf16 numbers times 2^-120: sign and magnitude move to their places.
__device__ __forceinline__ uint2 SpreadCodes(uint32_t codes) {
  const uint32_t low = __byte_perm(codes, 0, 0x1404), high = __byte_perm(codes, 0, 0x3424);
  return {(low & 0x80008000u) | (low >> 4 & 0x07f007f0u),
          (high & 0x80008000u) | (high >> 4 & 0x07f007f0u)};
}
// Bit 7 of a byte is set if its code is NaN; other bits are anything.
__device__ __forceinline__ uint32_t NanCodes(uint32_t codes) {
  return (codes & 0x7f7f7f7fu) + 0x01010101u;
}

// Sixteen codes with their E8M0 scale as bf16 numbers, exactly. If one is NaN, all become NaN: the
// score of their key does anyway.
__device__ __forceinline__ RowPiece DecodeCodes(const uint4& codes, uint32_t scale) {
  constexpr uint32_t kMostExponent = 254 - 120;  // of one multiplication
  const uint32_t factor = (min(scale, kMostExponent) + 120) << 7;
  const uint2 a = SpreadCodes(codes.x), b = SpreadCodes(codes.y), c = SpreadCodes(codes.z),
              d = SpreadCodes(codes.w);
  const uint32_t twice = factor << 16 | factor;
  RowPiece out{{MultiplyBf16(a.x, twice), MultiplyBf16(a.y, twice), MultiplyBf16(b.x, twice),
                MultiplyBf16(b.y, twice)},
               {MultiplyBf16(c.x, twice), MultiplyBf16(c.y, twice), MultiplyBf16(d.x, twice),
                MultiplyBf16(d.y, twice)}};
  const bool nan =
      ((NanCodes(codes.x) | NanCodes(codes.y) | NanCodes(codes.z) | NanCodes(codes.w)) &
       0x80808080u) != 0;
  if (nan || scale > kMostExponent) {
    const uint32_t rest = nan || scale == 0xff ? 0x7fc0u : (scale - kMostExponent + 127) << 7;
    const uint32_t pair = rest << 16 | rest;
    for (uint32_t* word : {&out.first.x, &out.first.y, &out.first.z, &out.first.w, &out.second.x,
                           &out.second.y, &out.second.z, &out.second.w}) {
      *word = MultiplyBf16(*word, pair);
    }
  }
  return out;
}

__device__ __forceinline__ void StoreShared16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// Sixteen channels (from 16 * quarter on) of a key into its group.
template <class D>
__device__ __forceinline__ void StorePiece(uint32_t group, int key, int quarter, int channel,
                                           const RowPiece& stored, uint32_t scale) {
  const RowPiece piece = channel < D::kFp8Dim ? DecodeCodes(stored.first, scale) : stored;
  const uint32_t row = group + static_cast<uint32_t>(key) * 128;
  const auto at = static_cast<uint32_t>(2 * quarter), turn = static_cast<uint32_t>(key % 8);
  StoreShared16(row + (at ^ turn) * 16, piece.first);
  StoreShared16(row + ((at + 1) ^ turn) * 16, piece.second);
}

// What this thread wrote to shared memory, before it says so to whoever gives it to wgmma.
__device__ __forceinline__ void SharedProxyFence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace halfbyte::attention
