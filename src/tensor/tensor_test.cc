#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "numerics/e4m3.h"
#include "numerics/mxfp4_block.h"
#include "tensor/dtype.h"
#include "tensor/mxfp4_to_nvfp4.h"
#include "tensor/nvfp4_matrix.h"
#include "tensor/scale_check.h"
#include "tensor/scale_layout.h"
#include "tensor/tensor_view.h"
#include "tensor/tile_scales.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {
namespace {

// Scale bytes such as a quantizer writes: 0x00..0x7e, and never the same row twice.
std::vector<uint8_t> ScaleBytes(int64_t rows, int64_t blocks, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * blocks));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(1 + random() % 0x7e);
  return bytes;
}

TEST(TiledScales, MatchesTheExamplesOfTheSpecification) {  // R21
  const TiledScales layout{201, 10};
  EXPECT_EQ(layout.tile_columns(), 3);
  EXPECT_EQ(layout.offset(0, 0), 0);
  EXPECT_EQ(layout.offset(0, 3), 3);
  EXPECT_EQ(layout.offset(0, 4), 512);
  EXPECT_EQ(layout.offset(1, 0), 16);
  EXPECT_EQ(layout.offset(31, 3), 499);
  EXPECT_EQ(layout.offset(32, 0), 4);
  EXPECT_EQ(layout.offset(127, 9), 1533);
  EXPECT_EQ(layout.offset(128, 0), 1536);
  EXPECT_EQ(layout.offset(200, 5), 2185);
}

TEST(TiledScales, IsABijectionOntoThePaddedBuffer) {  // R21, R25: all rows, all columns
  for (const int64_t blocks : {10, 33, 128, 192, 256, 448}) {
    for (const int64_t rows : {1, 128, 300}) {
      const TiledScales layout{rows, blocks};
      std::vector<bool> hit(static_cast<size_t>(layout.bytes()));
      for (int64_t row = 0; row < layout.padded_rows(); ++row) {
        for (int64_t block = 0; block < layout.tile_columns() * 4; ++block) {
          const int64_t offset = layout.offset(row, block);
          ASSERT_TRUE(offset >= 0 && offset < layout.bytes());
          ASSERT_FALSE(hit[static_cast<size_t>(offset)]);
          hit[static_cast<size_t>(offset)] = true;
          ASSERT_EQ(layout.position(offset), (TiledScales::Position{row, block}));
        }
      }
      EXPECT_EQ(std::count(hit.begin(), hit.end(), false), 0);
    }
  }
}

TEST(TileScales, MovesEveryByteAndClearsThePadding) {  // R30, R31
  for (const int64_t rows : {1, 31, 32, 33, 127, 128, 129, 300}) {
    for (const int64_t blocks : {1, 3, 4, 5, 10, 128}) {
      const TiledScales layout{rows, blocks};
      const std::vector<uint8_t> linear = ScaleBytes(rows, blocks, 1);
      std::vector<uint8_t> tiled(static_cast<size_t>(layout.bytes()) + 1, 0x7f);
      TileScales(linear.data(), layout, tiled.data());
      EXPECT_EQ(tiled.back(), 0x7f);  // nothing behind the buffer
      tiled.pop_back();
      for (int64_t offset = 0; offset < layout.bytes(); ++offset) {
        const auto [row, block] = layout.position(offset);
        const bool real = row < rows && block < blocks;
        ASSERT_EQ(tiled[static_cast<size_t>(offset)],
                  real ? linear[static_cast<size_t>(row * blocks + block)] : 0);
      }
      // What padding holds changes nothing on the way back.
      for (int64_t offset = 0; offset < layout.bytes(); ++offset) {
        const auto [row, block] = layout.position(offset);
        if (row >= rows || block >= blocks) tiled[static_cast<size_t>(offset)] = 0x7f;
      }
      std::vector<uint8_t> back(linear.size(), 0xee);
      UntileScales(tiled.data(), layout, back.data());
      EXPECT_EQ(back, linear);
    }
  }
}

RC_GTEST_PROP(TileScales, UntileBringsEveryByteBack, ()) {
  const int64_t rows = *rc::gen::inRange<int64_t>(0, 400);
  const int64_t blocks = *rc::gen::inRange<int64_t>(1, 40);
  const TiledScales layout{rows, blocks};
  const std::vector<uint8_t> linear = ScaleBytes(rows, blocks, *rc::gen::arbitrary<uint32_t>());
  std::vector<uint8_t> tiled(static_cast<size_t>(layout.bytes()), 0xff);
  TileScales(linear.data(), layout, tiled.data());
  std::vector<uint8_t> back(linear.size());
  UntileScales(tiled.data(), layout, back.data());
  RC_ASSERT(back == linear);
}

// Rows of all groups one after the other, and where each group starts in the padded buffer.
struct Groups {
  std::vector<int64_t> counts;
  std::vector<int64_t> begins;  // padded
  int64_t rows = 0;
  int64_t padded = 0;

  explicit Groups(std::vector<int64_t> n) : counts(std::move(n)) {
    for (const int64_t count : counts) {
      begins.push_back(padded);
      rows += count;
      padded += RoundUp(count, TiledScales::kTileRows);
    }
  }
};

std::vector<uint8_t> TileEachGroup(const Groups& groups, int64_t blocks,
                                   const std::vector<uint8_t>& linear) {
  const TiledScales all{groups.padded, blocks};
  std::vector<uint8_t> tiled(static_cast<size_t>(all.bytes()), 0x7f);
  int64_t row = 0;
  for (size_t g = 0; g < groups.counts.size(); ++g) {
    TileScales(linear.data() + row * blocks, {groups.counts[g], blocks},
               tiled.data() + all.offset(groups.begins[g], 0));
    row += groups.counts[g];
  }
  return tiled;
}

// R22, R23, R24, R33, R36.
TEST(TileScales, GroupsOnTheirOwnTilesEqualThePaddedWholeAndNotTheConcatenation) {
  for (const int64_t blocks : {10, 33, 128}) {
    const Groups groups({0, 1, 4, 127, 0, 0, 128, 129, 300, 500, 524, 0});
    const std::vector<uint8_t> linear = ScaleBytes(groups.rows, blocks, 3);
    const std::vector<uint8_t> each = TileEachGroup(groups, blocks, linear);

    std::vector<uint8_t> padded(static_cast<size_t>(groups.padded * blocks));
    int64_t row = 0;
    for (size_t g = 0; g < groups.counts.size(); ++g) {
      std::copy_n(linear.begin() + row * blocks, groups.counts[g] * blocks,
                  padded.begin() + groups.begins[g] * blocks);
      row += groups.counts[g];
    }
    const TiledScales all{groups.padded, blocks};
    std::vector<uint8_t> whole(static_cast<size_t>(all.bytes()));
    TileScales(padded.data(), all, whole.data());
    EXPECT_EQ(each, whole);

    const TiledScales dense{groups.rows, blocks};
    std::vector<uint8_t> concatenation(static_cast<size_t>(dense.bytes()));
    TileScales(linear.data(), dense, concatenation.data());
    EXPECT_FALSE(std::equal(concatenation.begin(), concatenation.end(), each.begin()));
  }
}

TEST(TileScales, AnEmptyGroupMovesNoOtherGroup) {  // R24
  const std::vector<std::vector<int64_t>> with_empty = {
      {0, 5, 130}, {5, 0, 130}, {5, 130, 0}, {0, 0, 5, 0, 0, 130, 0, 0}};
  const std::vector<uint8_t> linear = ScaleBytes(135, 12, 5);
  const std::vector<uint8_t> expected = TileEachGroup(Groups({5, 130}), 12, linear);
  for (const auto& counts : with_empty) {
    EXPECT_EQ(TileEachGroup(Groups(counts), 12, linear), expected);
  }
}

TEST(TileScales, TilingTwiceIsNotTilingOnce) {  // CNV-01
  const TiledScales layout{128, 8};
  const std::vector<uint8_t> linear = ScaleBytes(128, 8, 9);
  std::vector<uint8_t> once(1024);
  std::vector<uint8_t> twice(1024);
  TileScales(linear.data(), layout, once.data());
  TileScales(once.data(), layout, twice.data());
  EXPECT_NE(once, twice);
  EXPECT_EQ(once[16], linear[8]);
}

TEST(ScaleOffsets, DoNotOverflowAboveTwoToTheThirtyOne) {  // R48
  EXPECT_EQ((LinearScales{349'527, 6144}.offset(349'526, 0)), int64_t{349'526} * 6144);
  const TiledScales layout{int64_t{1} << 23, 448};
  EXPECT_GT(layout.bytes(), int64_t{1} << 31);
  EXPECT_EQ(layout.position(layout.offset(layout.rows - 1, 447)),
            (TiledScales::Position{layout.rows - 1, 447}));
}

TEST(ScaleCheck, NamesTheTensorAndThePlaceOfTheFirstBadByte) {  // R105, R111
  std::vector<std::byte> scales(200'000, std::byte{0x7e});
  EXPECT_TRUE(CheckE4m3BlockScales(scales, 100, "w").has_value());
  for (const int bad : {0x7f, 0x80, 0xff}) {
    scales[123'456] = static_cast<std::byte>(bad);
    const Status status = CheckE4m3BlockScales(scales, 100, "layers.3.w1.weight_scale");
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message.find("layers.3.w1.weight_scale"), std::string::npos);
    EXPECT_NE(status.error().message.find("[1234, 56]"), std::string::npos);
    EXPECT_EQ(CheckE8m0Scales(scales, 100, "w").has_value(), bad != 0xff);
  }
  for (const int fine : {0x00, 0x01, 0x08, 0x20, 0x38}) {  // zero blocks of other writers
    scales[123'456] = static_cast<std::byte>(fine);
    EXPECT_TRUE(CheckE4m3BlockScales(scales, 100, "w").has_value());
  }
  EXPECT_TRUE(CheckE4m3BlockScales({}, 100, "w").has_value());
}

TEST(DType, EveryNameComesBack) {
  for (int i = 0; i < static_cast<int>(DType::kUnknown); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
    EXPECT_GE(DTypeBits(dtype), 4);
  }
  EXPECT_EQ(DTypeFromName("bf16"), std::nullopt);
  EXPECT_EQ(DTypeFromName(DTypeName(DType::kUnknown)), std::nullopt);
  EXPECT_EQ(DTypeSize(DType::kBf16), 2);
}

TEST(DType, SizesAreThoseOfTheFormat) {
  const std::map<std::string, int64_t> bytes_of_8 = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  EXPECT_EQ(std::ssize(bytes_of_8), static_cast<int>(DType::kUnknown));
  for (const auto& [name, bytes] : bytes_of_8) {
    EXPECT_EQ(ByteCount(*DTypeFromName(name), std::vector<int64_t>{2, 4}), bytes) << name;
  }
}

TEST(TensorView, ReadsElementsAtAnyAddress) {
  std::vector<std::byte> storage(1 + 3 * sizeof(float));
  const float values[] = {1.5f, -2, 3};
  std::memcpy(storage.data() + 1, values, sizeof(values));
  const TensorView view{DType::kF32, {3}, std::span(storage).subspan(1)};
  EXPECT_EQ(view.Load<float>(1), -2);
  EXPECT_EQ(view.elements(), 3);
  EXPECT_EQ(ShapeString(std::vector<int64_t>{256, 4096}), "[256, 4096]");
  EXPECT_EQ(ElementCount(Shape{}), 1);
}

TEST(Nvfp4Matrix, PacksKOnly) {  // R28, R29
  Nvfp4Matrix matrix(1536, 7168, GlobalScale(0.5f));
  EXPECT_EQ(matrix.view().rows, 1536);
  EXPECT_EQ(matrix.view().row_codes(1) - matrix.view().row_codes(0), 3584);
  EXPECT_EQ(matrix.view().row_scales(1) - matrix.view().row_scales(0), 448);
}

TEST(Nvfp4Matrix, UsesLinearScalesUntransposedAndTheGlobalScale) {  // R14, R27
  Nvfp4Matrix matrix(2, 32, GlobalScale(0.5f));
  std::fill_n(matrix.codes(), 32, PackE2m1(2, 9));  // 1, -0.5
  const float scales[] = {1, 2, 4, 8};              // [row 0: 1, 2], [row 1: 4, 8]
  for (int i = 0; i < 4; ++i) matrix.block_scales()[i] = E4m3FromFloat(scales[i]);
  EXPECT_EQ(matrix.view().at(0, 16), 1);
  EXPECT_EQ(matrix.view().at(1, 0), 2);
  EXPECT_EQ(matrix.view().at(1, 31), -2);
}

WeightMatrix Mxfp4(int64_t rows, int64_t columns, const std::vector<std::byte>& codes,
                   const std::vector<std::byte>& scales) {
  return {.format = WeightFormat::kMxfp4,
          .rows = rows,
          .columns = columns,
          .data = codes.data(),
          .scales = scales.data(),
          .scale_dtype = DType::kF8E8m0};
}

// R108: whole matrices, bit for bit, with zero blocks and negative zeros among the codes.
TEST(Mxfp4ToNvfp4, DecodesToTheSameNumbersWithinTheWindow) {
  std::mt19937 random(21);
  for (const int top : {140, 20, 9, 0}) {
    std::vector<std::byte> codes(5 * 96 / 2);
    std::vector<std::byte> scales(5 * 3);
    for (std::byte& byte : codes) byte = static_cast<std::byte>(random());
    for (size_t b = 0; b < scales.size(); ++b) {
      const int below = static_cast<int>(random() % 18);
      scales[b] = static_cast<std::byte>(std::max(0, top - (b == 0 ? 0 : below)));
    }
    std::fill_n(codes.begin() + 4 * 16, 16, std::byte{0x80});
    scales[4] = std::byte{0xfe};  // a marker on an all-zero block decides nothing
    const WeightMatrix source = Mxfp4(5, 96, codes, scales);
    const auto largest = LargestMxfp4Scale(source, "w");
    ASSERT_TRUE(largest.has_value());
    EXPECT_EQ(*largest, top);
    Mxfp4AsNvfp4 result = Mxfp4ToNvfp4(source, *largest);
    EXPECT_TRUE(result.lossless());
    EXPECT_EQ(std::memcmp(result.matrix.codes(), codes.data(), codes.size()), 0);
    EXPECT_EQ(result.matrix.block_scales()[8], 0);
    EXPECT_EQ(result.matrix.block_scales()[9], 0);
    std::vector<float> row(96);
    for (int64_t r = 0; r < 5; ++r) {
      DequantizeRow(source, r, row.data());
      for (int64_t c = 0; c < 96; ++c) {
        ASSERT_EQ(std::bit_cast<uint32_t>(result.matrix.view().at(r, c)),
                  std::bit_cast<uint32_t>(row[static_cast<size_t>(c)]))
            << top << " " << r << " " << c;
      }
    }
  }
}

TEST(Mxfp4ToNvfp4, ReportsAndRequantizesBlocksOutsideTheWindow) {
  const std::vector<std::byte> codes(2 * 64 / 2, std::byte{0x77});
  const std::vector<std::byte> scales = {std::byte{130}, std::byte{113}, std::byte{112},
                                         std::byte{50}};
  const WeightMatrix source = Mxfp4(2, 64, codes, scales);
  Mxfp4AsNvfp4 result = Mxfp4ToNvfp4(source, *LargestMxfp4Scale(source, "w"));
  EXPECT_EQ(result.inexact_blocks, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(result.lossless());
  EXPECT_EQ(result.matrix.view().at(0, 33), std::ldexp(6.0f, 113 - 127));
  for (int64_t c = 0; c < 64; ++c) EXPECT_EQ(result.matrix.view().at(1, c), 0);
  for (int i = 16; i < 32; ++i) {  // a zero scale has zero codes (nvfp4.md §3.2)
    EXPECT_EQ(result.matrix.codes()[16 + i], 0);
  }
}

TEST(Mxfp4ToNvfp4, AllZeroTensorsHaveNoLargestScale) {
  const std::vector<std::byte> codes(16, std::byte{0x08});
  const std::vector<std::byte> scales = {std::byte{200}};
  const WeightMatrix source = Mxfp4(1, 32, codes, scales);
  const auto largest = LargestMxfp4Scale(source, "w");
  ASSERT_TRUE(largest.has_value());
  EXPECT_EQ(*largest, std::nullopt);
  Mxfp4AsNvfp4 result = Mxfp4ToNvfp4(source, *largest);
  EXPECT_TRUE(result.lossless());
  EXPECT_TRUE(result.matrix.view().global_scale.IsUsable());
  EXPECT_EQ(result.matrix.view().at(0, 0), 0);
}

TEST(WeightMatrix, RowsOfEveryFormatDecode) {
  const std::vector<std::byte> codes(4 * 64, std::byte{0x2a});
  const std::vector<std::byte> scales(4 * 4, std::byte{0x38});
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kF16, WeightFormat::kFp8,
        WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    WeightMatrix matrix{.format = format, .rows = 2, .columns = 32};
    matrix.data = codes.data();
    matrix.scales = scales.data();
    matrix.scale_block_columns = 32;
    if (format == WeightFormat::kMxfp4) matrix.scale_dtype = DType::kF8E8m0;
    std::vector<float> all(64);
    std::vector<float> second(32);
    DequantizeRow(matrix, 0, all.data());
    DequantizeRow(matrix, 1, all.data() + 32);
    DequantizeRow(matrix.Rows(1, 1), 0, second.data());
    EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin() + 32))
        << WeightFormatName(format);
    EXPECT_NE(all[0], 0);
  }
}

TEST(SplitContraction, SaysWhetherTilesStayWhole) {  // CPU-03
  EXPECT_TRUE(SplitContraction(2048, 8).whole_tiles);
  EXPECT_FALSE(SplitContraction(1856, 2).whole_tiles);
  EXPECT_EQ(SplitContraction(1856, 4).blocks, 29);
}

}  // namespace
}  // namespace halfbyte
