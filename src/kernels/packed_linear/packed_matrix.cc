#include "kernels/packed_linear/packed_matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>

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
bool PackRow(const WeightMatrix& w, const ScaleRule& rule, int64_t row, uint8_t* panel) {
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data) + row * w.row_bytes();
  const auto* scales = reinterpret_cast<const uint8_t*>(w.scales) + row * w.scale_columns();
  const int64_t lane = row % kPanelRows;
  bool known = true;
  for (int64_t column = 0; column < w.columns; column += kTileColumns) {
    const int64_t count = std::min(kTileColumns, w.columns - column);
    uint64_t words[kTileBlocks] = {};
    std::memcpy(words, codes + column / 2, static_cast<size_t>(count / 2));
    uint8_t* tile = panel + column / kTileColumns * kTileBytes;
    for (int64_t b = 0; b < kTileBlocks; ++b) {
      const uint64_t mixed = Interleave(words[b]);
      const auto low = static_cast<uint32_t>(mixed);
      const auto high = static_cast<uint32_t>(mixed >> 32);
      std::memcpy(tile + b * 128 + lane * 4, &low, sizeof(low));
      std::memcpy(tile + b * 128 + 64 + lane * 4, &high, sizeof(high));
    }
    for (int64_t b = 0; b < count / kNvfp4Block; ++b) {
      const int64_t block = column / kNvfp4Block + b;
      uint8_t scale = rule.table[scales[block / rule.divisor]];
      if (scale == kNoScale) {
        if (rule.divisor == 1 || !AllZero(codes + block * (kNvfp4Block / 2))) known = false;
        scale = 0;
      }
      tile[kTileCodeBytes + b * kPanelRows + lane] = scale;
    }
  }
  return known;
}

void PackPanel(const WeightMatrix& w, const ScaleRule& rule, int64_t index, uint8_t* panel,
               int64_t panel_bytes, std::atomic<bool>& unknown) {
  const int64_t first = index * kPanelRows;
  const int64_t count = std::min(kPanelRows, w.rows - first);
  if (count < kPanelRows || w.columns % kTileColumns != 0) {
    std::memset(panel, 0, static_cast<size_t>(panel_bytes));
  }
  for (int64_t r = 0; r < count; ++r) {
    if (!PackRow(w, rule, first + r, panel)) unknown.store(true, std::memory_order_relaxed);
  }
}

}  // namespace

Result<std::optional<PackedMatrix>> PackMatrix(ThreadPool& pool, const WeightMatrix& w,
                                               uint8_t* memory, std::string_view name) {
  const bool mxfp4 = w.format == WeightFormat::kMxfp4;
  HB_CHECK((mxfp4 || w.format == WeightFormat::kNvfp4) &&
               w.columns % (mxfp4 ? kMxfp4Block : kNvfp4Block) == 0 &&
               reinterpret_cast<uintptr_t>(memory) % 64 == 0,
           "{} [{}, {}] to {}", WeightFormatName(w.format), w.rows, w.columns,
           static_cast<const void*>(memory));
  PackedMatrix packed{w.rows, w.columns, memory, w.global_scale};
  ScaleRule rule = Nvfp4Rule();
  if (mxfp4) {
    HB_ASSIGN_OR_RETURN(const std::optional<uint8_t> largest, LargestMxfp4Scale(w, name));
    rule = Mxfp4Rule(largest.value_or(127));
    packed.global_scale = GlobalScale(std::ldexp(1.0f, largest.value_or(127) - 127 - 8));
    // Far below any model: 2^-135 and less are no normal fp32 numbers.
    if (largest.value_or(127) < 16) return std::nullopt;
  }
  const int64_t panel_bytes = packed.tiles() * kTileBytes;
  std::atomic<bool> unknown{false};
  pool.ParallelFor(packed.panels(),
                   std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, panel_bytes)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t p = begin; p < end; ++p) {
                       PackPanel(w, rule, p, memory + p * panel_bytes, panel_bytes, unknown);
                     }
                   });
  if (!unknown.load()) return packed;
  if (mxfp4) return std::nullopt;
  const auto bytes = static_cast<size_t>(w.rows * w.scale_columns());
  HB_RETURN_IF_ERROR(CheckE4m3BlockScales({w.scales, bytes}, w.scale_columns(), name));
  HB_CHECK(false, "{}: a scale byte changed while it was read", name);
}

Nvfp4Matrix UnpackMatrix(const PackedMatrix& packed) {
  Nvfp4Matrix out(packed.rows, packed.columns, packed.global_scale);
  for (int64_t row = 0; row < packed.rows; ++row) {
    const uint8_t* panel = packed.data + row / kPanelRows * packed.tiles() * kTileBytes;
    const int64_t lane = row % kPanelRows;
    for (int64_t block = 0; block < packed.columns / kNvfp4Block; ++block) {
      const uint8_t* tile = panel + block / kTileBlocks * kTileBytes;
      const int64_t b = block % kTileBlocks;
      uint32_t low, high;
      std::memcpy(&low, tile + b * 128 + lane * 4, sizeof(low));
      std::memcpy(&high, tile + b * 128 + 64 + lane * 4, sizeof(high));
      const uint64_t codes = Deinterleave(uint64_t{high} << 32 | low);
      std::memcpy(out.codes() + (row * packed.columns + block * kNvfp4Block) / 2, &codes,
                  sizeof(codes));
      out.block_scales()[row * (packed.columns / kNvfp4Block) + block] =
          E4m3FromFloat(PackedScaleToFloat(tile[kTileCodeBytes + b * kPanelRows + lane]));
    }
  }
  return out;
}

}  // namespace halfbyte
