// Rows of activations as the kernels of packed_linear.h take them.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/packed_linear/packed_kernels.h"
#include "kernels/packed_linear/packed_linear.h"
#include "numerics/e4m3.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kBlock = 16;

// Sixteen codes of two a byte as int8, times 2, in the order of the columns.
__m128i DoubledCodes(const uint8_t* codes) {
  const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  const __m128i split = _mm_unpacklo_epi8(both, _mm_srli_epi16(both, 4));
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  return _mm_shuffle_epi8(table, _mm_and_si128(split, _mm_set1_epi8(15)));
}

int32_t SumOf(__m128i bytes) {
  const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes);
  const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
  const __m128i twos = _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(twos, _mm_shuffle_epi32(twos, 0xb1)));
}

// Eight numbers to the nearest bf16, ties to even; below `least` to zero; NaN stays NaN.
__m256i RoundToBf16(const float* x, float least) {
  const __m256 value = _mm256_loadu_ps(x);
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
  const __m256 keep = _mm256_cmp_ps(magnitude, _mm256_set1_ps(least), _CMP_NLT_UQ);
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256i bits = _mm256_castps_si256(_mm256_and_ps(value, keep));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)),
                          _mm256_set1_epi32(-0x10000));
}

// Bits of the largest magnitude of sixteen numbers; those of a NaN are above all others.
int32_t LargestBits(__m256 a, __m256 b) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  const __m256i eight = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a), mask),
                                         _mm256_and_si256(_mm256_castps_si256(b), mask));
  const __m128i four =
      _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// Block b of a W4a8 tile from sixteen numbers.
void QuantizeInt8Block(const float* x, int64_t b, Int8Tile& tile) {
  const __m256 lo = _mm256_loadu_ps(x);
  const __m256 hi = _mm256_loadu_ps(x + 8);
  const auto amax = std::bit_cast<float>(LargestBits(lo, hi));
  if (!(amax < 0x1p64f)) {
    tile.scale[b] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  if (amax < 0x1p-52f) return;
  const __m256 inverse = _mm256_set1_ps(127 / amax);
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(lo, inverse)),
                                           _mm256_cvtps_epi32(_mm256_mul_ps(hi, inverse)));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i codes =
      _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.codes[0] + b * kBlock), codes);
  tile.bias[b] = -12 * SumOf(codes);
  tile.scale[b] = amax / 127 * 0x1p59f;
}

// 0 for a block that counts as 0, NaN for one that makes its row's results NaN, or else the power
// of two of which W4a16 makes the block's numbers multiples, each below 2^15 in magnitude.
float UnitOf(float amax) {
  if (!(amax < 0x1p64f)) return std::numeric_limits<float>::quiet_NaN();
  if (amax < 0x1p-63f) return 0;
  constexpr uint32_t kBf16Step = 1u << 16, kExponent = 0xffu << 23;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(amax) + kBf16Step) & kExponent) * 0x1p-14f;
}

// Sixteen bf16 numbers (in fp32) of one block, as whole multiples of its unit, with that.
struct UnitBlock {
  __m256i multiples[2];
  float unit;

  explicit UnitBlock(const float* x) {
    const __m256 lo = _mm256_castsi256_ps(RoundToBf16(x, 0x1p-100f));
    const __m256 hi = _mm256_castsi256_ps(RoundToBf16(x + 8, 0x1p-100f));
    unit = UnitOf(std::bit_cast<float>(LargestBits(lo, hi)));
    const __m256 inverse = _mm256_set1_ps(unit > 0 ? 1 / unit : 0);
    multiples[0] = _mm256_cvtps_epi32(_mm256_mul_ps(lo, inverse));
    multiples[1] = _mm256_cvtps_epi32(_mm256_mul_ps(hi, inverse));
  }
  // Eight of the numbers as fp32; NaN if the block is.
  __m256i Values(int half) const {
    const __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(multiples[half]), _mm256_set1_ps(unit));
    return _mm256_castps_si256(value);
  }
};

// Eight bf16 numbers in fp32 to pairs in the order of kBf16AndInt16.
__m128i PairsOf(__m256i values) {
  const __m256i firsts = _mm256_setr_epi32(2, 6, 3, 7, 0, 0, 0, 0);
  const __m256i seconds = _mm256_setr_epi32(0, 4, 1, 5, 0, 0, 0, 0);
  const __m256i first = _mm256_permutevar8x32_epi32(values, firsts);
  const __m256i second = _mm256_permutevar8x32_epi32(values, seconds);
  return _mm256_castsi256_si128(_mm256_or_si256(first, _mm256_srli_epi32(second, 16)));
}

// Block b of a tile of kInt16, into the operand itself: a tile put together elsewhere and copied
// would wait for its small stores.
void StoreInt16Block(const UnitBlock& block, int64_t b, std::byte* tile) {
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(block.multiples[0], block.multiples[1]), 0xd8);
  const __m256i lower = _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 8);
  const __m256i upper = _mm256_srai_epi16(_mm256_sub_epi16(words, lower), 8);
  const __m256i planes = _mm256_permute4x64_epi64(_mm256_packs_epi16(upper, lower), 0xd8);
  const __m128i upper_codes = _mm256_castsi256_si128(planes);
  const __m128i lower_codes = _mm256_extracti128_si256(planes, 1);
  const int32_t bias = -12 * (256 * SumOf(upper_codes) + SumOf(lower_codes));
  const float scale = block.unit * 0x1p77f;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile + b * kBlock), upper_codes);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile + kTileColumns + b * kBlock), lower_codes);
  std::memcpy(tile + offsetof(Int16Tile, bias) + b * 4, &bias, sizeof(bias));
  std::memcpy(tile + offsetof(Int16Tile, scale) + b * 4, &scale, sizeof(scale));
}

void PrepareInt8Row(const float* x, int64_t columns, std::byte* operand) {
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    Int8Tile tile = {};
    const int64_t blocks = std::min(kTileColumns, columns - column) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) QuantizeInt8Block(x + column + b * kBlock, b, tile);
    std::memcpy(operand, &tile, sizeof(tile));
    operand += sizeof(tile);
  }
}

void PrepareFp32Row(const float* x, int64_t columns, std::byte* operand) {
  for (int64_t k = 0; k < columns; k += 8) {
    const __m256i rounded = RoundToBf16(x + k, kLeastWide);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(operand + k * 4), rounded);
  }
  const int64_t filled = columns * 4;
  std::memset(operand + filled, 0,
              static_cast<size_t>(OperandRowBytes(OperandFormat::kFp32, columns) - filled));
}

void PrepareW4a16Row(OperandFormat format, const float* x, int64_t columns, std::byte* operand) {
  const bool bf16 = format == OperandFormat::kBf16AndInt16;
  const int64_t row_bytes = OperandRowBytes(format, columns);
  std::byte* integers = operand + row_bytes - OperandRowBytes(OperandFormat::kInt16, columns);
  std::byte* pairs = operand;
  if (columns % kTileColumns != 0) std::memset(operand, 0, static_cast<size_t>(row_bytes));
  for (int64_t column = 0; column < columns; column += kBlock) {
    const UnitBlock block(x + column);
    const int64_t tile = column / kTileColumns;
    StoreInt16Block(block, column % kTileColumns / kBlock,
                    integers + tile * int64_t{sizeof(Int16Tile)});
    for (int h = 0; h < 2 && bf16; ++h, pairs += 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(pairs), PairsOf(block.Values(h)));
    }
  }
}

}  // namespace

int64_t OperandRowBytes(OperandFormat format, int64_t columns) {
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns;
  const int64_t wide_columns = RoundUp(columns, TileOf(PackedFormat::kFp8).columns);
  switch (format) {
    case OperandFormat::kInt8:
      return tiles * int64_t{sizeof(Int8Tile)};
    case OperandFormat::kInt16:
      return tiles * int64_t{sizeof(Int16Tile)};
    case OperandFormat::kBf16AndInt16:
      return tiles * (kTileColumns * 2 + int64_t{sizeof(Int16Tile)});
    case OperandFormat::kPairs:
      return wide_columns * 2;
    case OperandFormat::kFp32:
      return wide_columns * 4;
  }
  return 0;
}

int64_t MaxOperandRowBytes(int64_t columns) {
  return std::max(OperandRowBytes(OperandFormat::kBf16AndInt16, columns),
                  OperandRowBytes(OperandFormat::kFp32, columns));
}

void PrepareNvfp4Row(const uint8_t* codes, const uint8_t* block_scales, int64_t columns,
                     std::byte* operand) {
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    Int8Tile tile = {};
    const int64_t blocks = std::min(kTileColumns, columns - column) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t block = column / kBlock + b;
      const __m128i doubled = DoubledCodes(codes + block * kBlock / 2);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.codes[0] + b * kBlock), doubled);
      tile.bias[b] = -12 * SumOf(doubled);
      tile.scale[b] = E4m3ToFloat(block_scales[block]) * 0x1p58f;
    }
    std::memcpy(operand, &tile, sizeof(tile));
    operand += sizeof(tile);
  }
}

void PrepareRow(const PackedKernel& kernel, const float* x, int64_t columns, std::byte* operand) {
  HB_CHECK(columns % kBlock == 0, "{} columns", columns);
  switch (kernel.arithmetic) {
    case PackedArithmetic::kW4a4:
      break;  // PrepareNvfp4Row
    case PackedArithmetic::kW4a8:
      return PrepareInt8Row(x, columns, operand);
    case PackedArithmetic::kW4a16:
      return PrepareW4a16Row(kernel.format, x, columns, operand);
    case PackedArithmetic::kW8a16:
    case PackedArithmetic::kW16a16:
      return kernel.format == OperandFormat::kPairs
                 ? packed_kernels::PreparePairs(x, columns, operand)
                 : PrepareFp32Row(x, columns, operand);
  }
  HB_CHECK(false, "{} takes codes", kernel.name);
}

}  // namespace halfbyte
