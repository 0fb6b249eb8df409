#include "kernels/packed_linear/packed_matrix.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "numerics/e4m3.h"
#include "numerics/mxfp4_block.h"
#include "tensor/mxfp4_to_nvfp4.h"
#include "tensor/scale_check.h"

namespace halfbyte {
namespace {

constexpr int64_t kTileBlocks = kTileColumns / kNvfp4Block;
// Bytes of a piece of the parallel loop.
constexpr int64_t kPieceBytes = 256 * 1024;
// In a table of scale bytes: this E8M0 scale has no E4M3 equal.
constexpr uint8_t kNoScale = 0xff;

// Nibbles 0..7 of each half to the order 0 4 1 5 2 6 3 7: first whole bytes, then halves.
constexpr uint64_t Interleave(uint64_t x) {
  uint64_t t = (x ^ (x >> 8)) & 0x0000ff000000ff00u;
  x ^= t ^ (t << 8);
  t = (x ^ (x >> 4)) & 0x00f000f000f000f0u;
  return x ^ t ^ (t << 4);
}
constexpr uint64_t Deinterleave(uint64_t x) {
  uint64_t t = (x ^ (x >> 4)) & 0x00f000f000f000f0u;
  x ^= t ^ (t << 4);
  t = (x ^ (x >> 8)) & 0x0000ff000000ff00u;
  return x ^ t ^ (t << 8);
}
static_assert(Interleave(0x7654321076543210u) == 0x7362514073625140u);
static_assert(Deinterleave(0x7362514073625140u) == 0x7654321076543210u);

// The scale bytes of a format as E4M3: block b of 16 columns takes table[stored[b / divisor]].
struct ScaleRule {
  std::array<uint8_t, 256> table;
  int64_t divisor = 1;
};

ScaleRule Nvfp4Rule() {
  ScaleRule rule;
  for (size_t byte = 0; byte < 256; ++byte) {
    rule.table[byte] = IsBlockScale(static_cast<uint8_t>(byte))
                           ? PackedScale(static_cast<uint8_t>(byte))
                           : kNoScale;
  }
  return rule;
}

// 2^k becomes 2^(k - largest + 8).
ScaleRule Mxfp4Rule(uint8_t largest) {
  ScaleRule rule;
  rule.divisor = kMxfp4Block / kNvfp4Block;
  for (int byte = 0; byte < 256; ++byte) {
    const int exponent = byte - largest + 8;
    const bool fits = exponent >= -9 && exponent <= 8;
    rule.table[static_cast<size_t>(byte)] =
        !fits ? kNoScale : PackedScale(E4m3FromFloat(std::ldexp(1.0f, exponent)));
  }
  return rule;
}

bool AllZero(const uint8_t* block) {
  uint64_t codes;
  std::memcpy(&codes, block, sizeof(codes));
  return (codes & 0x7777777777777777u) == 0;
}

// One row of a panel into its place in every tile. False: a scale that the rule does not know,
// over a block that is not zero.
bool PackFourBitRow(const WeightMatrix& w, const ScaleRule& rule, int64_t row, uint8_t* panel) {
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data) + row * w.row_bytes();
  const auto* scales = reinterpret_cast<const uint8_t*>(w.scales) + row * w.scale_columns();
  const int64_t lane = row % kPanelRows;
  bool known = true;
  for (int64_t column = 0; column < w.columns; column += kTileColumns) {
    const int64_t count = std::min(kTileColumns, w.columns - column);
    uint64_t words[kTileBlocks] = {};
    std::memcpy(words, codes + column / 2, static_cast<size_t>(count / 2));
    uint8_t* tile = panel + column / kTileColumns * kTileBytes;
    uint8_t* stored = tile + kTileScaleBytes;
    for (int64_t b = 0; b < kTileBlocks; ++b) {
      const uint64_t mixed = Interleave(words[b]);
      const auto low = static_cast<uint32_t>(mixed);
      const auto high = static_cast<uint32_t>(mixed >> 32);
      std::memcpy(stored + b * 128 + lane * 4, &low, sizeof(low));
      std::memcpy(stored + b * 128 + 64 + lane * 4, &high, sizeof(high));
    }
    for (int64_t b = 0; b < count / kNvfp4Block; ++b) {
      const int64_t block = column / kNvfp4Block + b;
      uint8_t scale = rule.table[scales[block / rule.divisor]];
      if (scale == kNoScale) {
        if (rule.divisor == 1 || !AllZero(codes + block * (kNvfp4Block / 2))) known = false;
        scale = 0;
      }
      tile[b * kPanelRows + lane] = scale;
    }
  }
  return known;
}

// pack_row(row, its panel) for every row of w, in parallel over panels. False: it was for some row.
template <class PackRow>
bool PackRows(ThreadPool& pool, const WeightMatrix& w, const PackedMatrix& packed, uint8_t* memory,
              const PackRow& pack_row) {
  const int64_t panel_bytes = packed.panel_bytes();
  std::atomic<bool> all{true};
  pool.ParallelFor(packed.panels(),
                   std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, panel_bytes)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t p = begin; p < end; ++p) {
                       uint8_t* panel = memory + p * panel_bytes;
                       const int64_t first = p * kPanelRows;
                       const int64_t count = std::min(kPanelRows, w.rows - first);
                       if (count < kPanelRows || w.columns % TileOf(packed.format).columns != 0) {
                         std::memset(panel, 0, static_cast<size_t>(panel_bytes));
                       }
                       for (int64_t row = first; row < first + count; ++row) {
                         if (!pack_row(row, panel)) all.store(false, std::memory_order_relaxed);
                       }
                     }
                   });
  return all.load();
}

bool PackBf16Row(const WeightMatrix& w, int64_t row, uint8_t* panel) {
  const auto* from = w.data + row * w.row_bytes();
  const __m128i magnitude = _mm_set1_epi16(0x7fff);
  const __m128i least = _mm_set1_epi16((127 - 52) << 7);
  for (int64_t column = 0; column < w.columns; column += 8, from += 16) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i tiny = _mm_cmplt_epi16(_mm_and_si128(values, magnitude), least);
    const __m128i kept = _mm_andnot_si128(tiny, values);
    const __m128i pairs = _mm_or_si128(_mm_slli_epi32(kept, 16), _mm_srli_epi32(kept, 16));
    uint32_t words[4];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words), pairs);
    // Tiles follow each other without a gap.
    uint8_t* to = panel + column * kPanelRows * 2 + row % kPanelRows * 4;
    for (int i = 0; i < 4; ++i) std::memcpy(to + 64 * i, &words[i], sizeof(words[i]));
  }
  return true;
}

// False: a NaN.
bool PackFp8Row(const WeightMatrix& w, int64_t row, uint8_t* panel) {
  constexpr TileShape kTile = TileOf(PackedFormat::kFp8);
  const auto* from = w.data + row * w.row_bytes();
  const int64_t lane = row % kPanelRows;
  const __m128i magnitude = _mm_set1_epi8(0x7f);
  __m128i nan = _mm_setzero_si128();
  for (int64_t column = 0; column < w.columns; column += 16, from += 16) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    nan = _mm_or_si128(nan, _mm_cmpeq_epi8(_mm_and_si128(values, magnitude), magnitude));
    uint16_t pairs[8];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(pairs),
                     _mm_or_si128(_mm_slli_epi16(values, 8), _mm_srli_epi16(values, 8)));
    uint8_t* tile = panel + column / kTile.columns * kTile.bytes;
    uint8_t* to =
        tile + kTileScaleBytes + column % kTile.columns * kPanelRows + lane / 4 * 16 + lane % 4 * 2;
    for (int i = 0; i < 8; ++i) {
      std::memcpy(to + i / 2 * 64 + i % 2 * 8, &pairs[i], sizeof(pairs[i]));
    }
    if (column % kTile.columns == 0) {
      const float scale = Fp8WeightScale(w, row, column);
      std::memcpy(tile + lane * 4, &scale, sizeof(scale));
    }
  }
  return _mm_movemask_epi8(nan) == 0;
}

Result<std::optional<PackedMatrix>> PackFourBit(ThreadPool& pool, const WeightMatrix& w,
                                                uint8_t* memory, std::string_view name) {
  const bool mxfp4 = w.format == WeightFormat::kMxfp4;
  PackedMatrix packed{w.rows, w.columns, memory, w.global_scale};
  ScaleRule rule = Nvfp4Rule();
  if (mxfp4) {
    HB_ASSIGN_OR_RETURN(const std::optional<uint8_t> largest, LargestMxfp4Scale(w, name));
    rule = Mxfp4Rule(largest.value_or(127));
    packed.global_scale = GlobalScale(std::ldexp(1.0f, largest.value_or(127) - 127 - 8));
    // Far below any model: 2^-135 and less are no normal fp32 numbers.
    if (largest.value_or(127) < 16) return std::nullopt;
  }
  if (PackRows(pool, w, packed, memory,
               [&](int64_t row, uint8_t* panel) { return PackFourBitRow(w, rule, row, panel); })) {
    return packed;
  }
  if (mxfp4) return std::nullopt;
  const auto bytes = static_cast<size_t>(w.rows * w.scale_columns());
  HB_RETURN_IF_ERROR(CheckE4m3BlockScales({w.scales, bytes}, w.scale_columns(), name));
  HB_CHECK(false, "{}: a scale byte changed while it was read", name);
}

}  // namespace

std::optional<PackedFormat> PackedFormatOf(const WeightMatrix& w) {
  if (w.columns % 16 != 0) return std::nullopt;
  switch (w.format) {
    case WeightFormat::kNvfp4:
      return PackedFormat::kFourBit;
    case WeightFormat::kMxfp4:
      if (w.columns % kMxfp4Block != 0) return std::nullopt;
      return PackedFormat::kFourBit;
    case WeightFormat::kFp8:
      if (w.scale_block_columns < w.columns &&
          w.scale_block_columns % TileOf(PackedFormat::kFp8).columns != 0) {
        return std::nullopt;
      }
      return PackedFormat::kFp8;
    case WeightFormat::kBf16:
      return PackedFormat::kBf16;
    case WeightFormat::kF32:
    case WeightFormat::kF16:
      return std::nullopt;
  }
  return std::nullopt;
}

int64_t PackedBytes(const WeightMatrix& w) {
  const std::optional<PackedFormat> format = PackedFormatOf(w);
  return format ? PackedMatrix{.rows = w.rows, .columns = w.columns, .format = *format}.bytes() : 0;
}

Result<std::optional<PackedMatrix>> PackMatrix(ThreadPool& pool, const WeightMatrix& w,
                                               uint8_t* memory, std::string_view name) {
  HB_CHECK(reinterpret_cast<uintptr_t>(memory) % 64 == 0, "{} to {}", name,
           static_cast<const void*>(memory));
  const std::optional<PackedFormat> format = PackedFormatOf(w);
  if (!format) return std::nullopt;
  if (*format == PackedFormat::kFourBit) return PackFourBit(pool, w, memory, name);
  const PackedMatrix packed{w.rows, w.columns, memory, GlobalScale(1.0f), *format};
  const bool fits = PackRows(pool, w, packed, memory, [&](int64_t row, uint8_t* panel) {
    return *format == PackedFormat::kBf16 ? PackBf16Row(w, row, panel) : PackFp8Row(w, row, panel);
  });
  if (!fits) return std::nullopt;
  return packed;
}

Nvfp4Matrix UnpackMatrix(const PackedMatrix& packed) {
  Nvfp4Matrix out(packed.rows, packed.columns, packed.global_scale);
  for (int64_t row = 0; row < packed.rows; ++row) {
    const uint8_t* panel = packed.data + row / kPanelRows * packed.panel_bytes();
    const int64_t lane = row % kPanelRows;
    for (int64_t block = 0; block < packed.columns / kNvfp4Block; ++block) {
      const uint8_t* tile = panel + block / kTileBlocks * kTileBytes;
      const int64_t b = block % kTileBlocks;
      uint32_t low, high;
      std::memcpy(&low, tile + kTileScaleBytes + b * 128 + lane * 4, sizeof(low));
      std::memcpy(&high, tile + kTileScaleBytes + b * 128 + 64 + lane * 4, sizeof(high));
      const uint64_t codes = Deinterleave(uint64_t{high} << 32 | low);
      std::memcpy(out.codes() + (row * packed.columns + block * kNvfp4Block) / 2, &codes,
                  sizeof(codes));
      out.block_scales()[row * (packed.columns / kNvfp4Block) + block] =
          E4m3FromFloat(PackedScaleToFloat(tile[b * kPanelRows + lane]));
    }
  }
  return out;
}

}  // namespace halfbyte
