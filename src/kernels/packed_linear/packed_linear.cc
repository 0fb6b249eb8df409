#include "kernels/packed_linear/packed_linear.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/packed_linear/packed_kernels.h"
#include "numerics/e4m3.h"

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

// Eight numbers to the nearest bf16, ties to even; below 2^-100 to zero; NaN stays NaN.
__m256i RoundToBf16(const float* x) {
  const __m256 value = _mm256_loadu_ps(x);
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
  const __m256 keep = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-100f), _CMP_NLT_UQ);
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
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.codes + b * kBlock), codes);
  tile.bias[b] = -12 * SumOf(codes);
  tile.scale[b] = amax / 127 * 0x1p59f;
}

}  // namespace

std::vector<PackedKernel> PackedKernels(PackedArithmetic arithmetic, CpuIsa isa) {
  const bool avx2 = isa != CpuIsa::kScalar;
  const bool avx512 = isa == CpuIsa::kAvx512;
  if (arithmetic != PackedArithmetic::kW4a16) {
    // Both run the same kernels; their operands differ.
    const bool a4 = arithmetic == PackedArithmetic::kW4a4;
    std::vector<PackedKernel> kernels;
    const auto add = [&](const char* name, void (*run)(const PackedArguments&)) {
      kernels.push_back({name, arithmetic, OperandFormat::kInt8, run});
    };
    add(a4 ? "w4a4 reference" : "w4a8 reference", packed_kernels::W4a4Reference);
    if (avx2) add(a4 ? "w4a4 avx2" : "w4a8 avx2", packed_kernels::W4a4Avx2);
    if (avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi")) {
      add(a4 ? "w4a4 avx512-vnni" : "w4a8 avx512-vnni", packed_kernels::W4a4Avx512Vnni);
    }
    return kernels;
  }
  std::vector<PackedKernel> kernels = {
      {"w4a16 reference", arithmetic, OperandFormat::kFp32, packed_kernels::W4a16Reference}};
  if (avx2)
    kernels.push_back({"w4a16 avx2", arithmetic, OperandFormat::kFp32, simd_avx2::W4a16Fp32});
  if (avx512) {
    kernels.push_back({"w4a16 avx512", arithmetic, OperandFormat::kFp32, simd_avx512::W4a16Fp32});
  }
  if (avx512 && __builtin_cpu_supports("avx512bf16")) {
    const PackedKernel bf16 = {"w4a16 avx512-bf16", arithmetic, OperandFormat::kBf16,
                               packed_kernels::W4a16Avx512Bf16};
    // Same bits, so it is a matter of speed: Intel's vdpbf16ps is slower than its two fp32 units
    // (Sapphire Rapids, two cores: 135 GFLOP/s against 216), AMD's is faster.
    kernels.insert(kernels.end() - (__builtin_cpu_is("intel") ? 1 : 0), bf16);
  }
  return kernels;
}

const PackedKernel& BestPackedKernel(PackedArithmetic arithmetic, CpuIsa isa) {
  using Table = std::array<std::array<PackedKernel, 3>, 3>;
  static const Table table = [] {
    Table best;
    for (const PackedArithmetic a :
         {PackedArithmetic::kW4a4, PackedArithmetic::kW4a8, PackedArithmetic::kW4a16}) {
      for (const CpuIsa i : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
        best[static_cast<size_t>(a)][static_cast<size_t>(i)] = PackedKernels(a, i).back();
      }
    }
    return best;
  }();
  return table[static_cast<size_t>(arithmetic)][static_cast<size_t>(isa)];
}

int64_t OperandRowBytes(OperandFormat format, int64_t columns) {
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns;
  switch (format) {
    case OperandFormat::kInt8:
      return tiles * int64_t{sizeof(Int8Tile)};
    case OperandFormat::kBf16:
      return tiles * kTileColumns * 2;
    case OperandFormat::kFp32:
      return tiles * kTileColumns * 4;
  }
  return 0;
}

int64_t MaxOperandRowBytes(int64_t columns) {
  return OperandRowBytes(OperandFormat::kFp32, columns);
}

void PrepareNvfp4Row(const uint8_t* codes, const uint8_t* block_scales, int64_t columns,
                     std::byte* operand) {
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    Int8Tile tile = {};
    const int64_t blocks = std::min(kTileColumns, columns - column) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t block = column / kBlock + b;
      const __m128i doubled = DoubledCodes(codes + block * kBlock / 2);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.codes + b * kBlock), doubled);
      tile.bias[b] = -12 * SumOf(doubled);
      tile.scale[b] = E4m3ToFloat(block_scales[block]) * 0x1p58f;
    }
    std::memcpy(operand, &tile, sizeof(tile));
    operand += sizeof(tile);
  }
}

void PrepareInt8Row(const float* x, int64_t columns, std::byte* operand) {
  HB_CHECK(columns % kBlock == 0, "{} columns", columns);
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    Int8Tile tile = {};
    const int64_t blocks = std::min(kTileColumns, columns - column) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) QuantizeInt8Block(x + column + b * kBlock, b, tile);
    std::memcpy(operand, &tile, sizeof(tile));
    operand += sizeof(tile);
  }
}

void PrepareBf16Row(OperandFormat format, const float* x, int64_t columns, std::byte* operand) {
  HB_CHECK(format != OperandFormat::kInt8 && columns % 8 == 0, "{} columns", columns);
  const int64_t row_bytes = OperandRowBytes(format, columns);
  const int64_t step = format == OperandFormat::kFp32 ? 32 : 16;  // bytes of eight columns
  const __m256i order = _mm256_setr_epi32(2, 0, 6, 4, 3, 1, 7, 5);
  const __m256i firsts = _mm256_setr_epi32(2, 6, 3, 7, 0, 0, 0, 0);
  const __m256i seconds = _mm256_setr_epi32(0, 4, 1, 5, 0, 0, 0, 0);
  std::byte* out = operand;
  for (int64_t k = 0; k < columns; k += 8, out += step) {
    const __m256i rounded = RoundToBf16(x + k);
    if (format == OperandFormat::kFp32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          _mm256_permutevar8x32_epi32(rounded, order));
      continue;
    }
    const __m256i first = _mm256_permutevar8x32_epi32(rounded, firsts);
    const __m256i second = _mm256_permutevar8x32_epi32(rounded, seconds);
    const __m256i pairs = _mm256_or_si256(first, _mm256_srli_epi32(second, 16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(pairs));
  }
  std::memset(out, 0, static_cast<size_t>(operand + row_bytes - out));
}

void PackedLinearRange(const PackedKernel& kernel, const PackedMatrix& w, const std::byte* operand,
                       int64_t begin, int64_t end, MatrixView<float> y) {
  HB_CHECK(y.columns == w.rows && 0 <= begin && begin <= end && end <= w.rows &&
               begin % kPanelRows == 0 && (end % kPanelRows == 0 || end == w.rows),
           "columns [{}, {}) of y [{}, {}] for {} rows", begin, end, y.rows, y.columns, w.rows);
  kernel.run({.w = w.data,
              .tiles = w.tiles(),
              .rows = w.rows,
              .panel_begin = begin / kPanelRows,
              .panel_end = (end + kPanelRows - 1) / kPanelRows,
              .x = operand,
              .x_row_bytes = OperandRowBytes(kernel.format, w.columns),
              .tokens = y.rows,
              .y = y.data});
}

}  // namespace halfbyte
