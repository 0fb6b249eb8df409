#include "kernels/sm90_dense/dense_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "kernels/sm90_dense/dense_work.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"

namespace halfbyte::sm90 {
namespace {

float Bf16Bits(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

TEST(DenseLayout, AWovenWordHoldsFourCodesEach) {
  for (int place = 0; place < 4; ++place) {
    for (int code = 0; code < 256; ++code) {
      uint8_t codes[4] = {0x38, 0xb9, 0x5a, 0xe3};
      codes[place] = static_cast<uint8_t>(code);
      const uint32_t word = WeaveFp8(codes);
      const uint32_t pairs[2] = {UnweaveFp8First(word), UnweaveFp8Second(word)};
      for (int i = 0; i < 4; ++i) {
        if ((codes[i] & 0x7f) == 0x7f) continue;
        const float value = Bf16Bits(pairs[i / 2] >> (i % 2 * 16) & 0xffff);
        EXPECT_EQ(value, std::ldexp(E4m3ToFloat(codes[i]), -120)) << code << " at " << place;
        EXPECT_EQ(std::signbit(value), codes[i] >= 128);
      }
    }
  }
}

TEST(DenseLayout, EveryCodeTimesEveryScaleIsABf16Number) {
  for (int scale = 0; scale < 256; ++scale) {
    if (!IsDenseScale(scale)) continue;
    const float factor = Bf16Bits(DenseScaleWord(scale) & 0xffff);
    EXPECT_EQ(DenseScaleWord(scale) & 0xffff, DenseScaleWord(scale) >> 16);
    ASSERT_EQ(factor, std::ldexp(1.0f, scale - 127 + 120));
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;
      const double exact = std::ldexp(double{E4m3ToFloat(static_cast<uint8_t>(code))}, scale - 127);
      const float product = std::ldexp(E4m3ToFloat(static_cast<uint8_t>(code)), -120) * factor;
      ASSERT_EQ(double{product}, exact);
      ASSERT_EQ(double{ToFloat(ToBf16(product))}, exact);
      ASSERT_TRUE(exact == 0 || std::abs(exact) >= 0x1p-126) << "a subnormal";
    }
  }
  EXPECT_FALSE(IsDenseScale(-1));
  EXPECT_FALSE(IsDenseScale(255));
}

TEST(DenseLayout, RowsOfAStripKeepTheirSlab) {
  std::set<int64_t> rows;
  for (int64_t position = 0; position < kStripRows; ++position) {
    rows.insert(RowInStrip(position));
    EXPECT_EQ(RowInStrip(position) / 16, position / 16);
    if (position % 16 < 8) {
      EXPECT_EQ(RowInStrip(position + 8), RowInStrip(position) + 1);
    }
  }
  EXPECT_EQ(std::ssize(rows), kStripRows);
}

TEST(DenseLayout, PackedSizesHoldWholeBlocks) {
  EXPECT_EQ((DenseShape{DenseFormat::kBf16, 8, 64, 1}.bytes()), kDenseBlockBytes);
  EXPECT_EQ((DenseShape{DenseFormat::kFp8, 8192, 4096, 8}.bytes()),
            8192 * 4096 + 8192 / 64 * 16 * kDenseScaleBytes);
  EXPECT_EQ((DenseShape{DenseFormat::kBf16, 2 * 72, 192, 2}.bytes()), 4 * 2 * kDenseBlockBytes);
  EXPECT_EQ((DenseShape{DenseFormat::kF32, 3, 64, 1}.bytes()), 3 * 64 * 4);
}

TEST(DenseWork, TilesHoldAllTokensAndWasteLittle) {
  for (int64_t tokens = 1; tokens <= 20000; ++tokens) {
    const int64_t rows = DenseTileRows(tokens), all = CeilDiv(tokens, rows) * rows;
    ASSERT_GE(all, tokens);
    ASSERT_LT(all, 2 * tokens + 8) << tokens;
  }
}

TEST(DenseWork, SegmentsGoApartOnlyWhereTheyMayAndHelp) {
  const DenseShape o_a{DenseFormat::kFp8, 8192, 4096, 8}, o_b{DenseFormat::kFp8, 4096, 8192, 1},
      q_b{DenseFormat::kFp8, 32768, 1024, 1}, head{DenseFormat::kBf16, 129280, 4096, 1},
      router{DenseFormat::kBf16, 256, 4096, 1};
  const auto work = [](const DenseShape& shape, int64_t tokens) {
    return MakeDenseWork({&shape, 1}, tokens, 132);
  };
  EXPECT_TRUE(work(o_b, 8).apart);
  EXPECT_EQ(work(o_b, 8).items, 32 * 8);
  EXPECT_FALSE(work(o_a, 1).apart);
  EXPECT_EQ(work(o_a, 1).items, 128);
  EXPECT_FALSE(work(o_b, 8192).apart);
  EXPECT_FALSE(work(q_b, 1).apart);
  EXPECT_FALSE(work(head, 1).apart);
  EXPECT_TRUE(work(router, 1).apart);
  EXPECT_EQ(work(router, 1).strips_per_item, 1);
  EXPECT_EQ(work(router, 1).items, 4 * 4);
}

// All strips, segments and tiles of all weights, once each.
void ExpectCovers(const std::vector<DenseShape>& shapes, int64_t tokens, int64_t multiprocessors) {
  const DenseWork work = MakeDenseWork(shapes, tokens, multiprocessors);
  std::map<std::array<int64_t, 3>, int> seen;  // strip of all, segment, tile
  for (int32_t i = 0; i < work.items; ++i) {
    const DenseItem item = GetDenseItem(work, i);
    const DensePart& part = work.parts[item.part];
    ASSERT_GT(item.count, 0);
    ASSERT_LE(item.strip + item.count, part.strips_of_group);
    ASSERT_LT(item.group, shapes[static_cast<size_t>(item.part)].groups);
    for (int32_t s = item.strip; s < item.strip + item.count; ++s) {
      for (int32_t segment = item.segment; segment < item.segment_end; ++segment) {
        ++seen[{part.first_strip + item.group * part.strips_of_group + s, segment, item.tile}];
      }
    }
  }
  int64_t strips = 0;
  for (const DenseShape& shape : shapes) strips += shape.strips();
  EXPECT_EQ(std::ssize(seen), strips * work.segments * work.tiles);
  for (const auto& [at, times] : seen) {
    ASSERT_EQ(times, 1);
    ASSERT_LT(at[0], strips);
    ASSERT_LT(at[1], work.segments);
    ASSERT_LT(at[2], work.tiles);
  }
}

TEST(DenseWork, CoversEverythingOnce) {
  const DenseFormat fp8 = DenseFormat::kFp8, bf16 = DenseFormat::kBf16;
  for (const int64_t tokens : {1, 8, 65, 128, 200, 600, 2500, 8192}) {
    SCOPED_TRACE(tokens);
    for (const int64_t multiprocessors : {132, 114, 7}) {
      ExpectCovers({{bf16, 1024, 4096, 1},
                    {bf16, 72, 4096, 1},
                    {bf16, 64, 4096, 1},
                    {fp8, 1024, 4096, 1},
                    {fp8, 520, 4096, 1}},
                   tokens, multiprocessors);
      ExpectCovers({{fp8, 8 * 192, 4096, 8}}, tokens, multiprocessors);
      ExpectCovers({{bf16, 8, 128, 1}}, tokens, multiprocessors);
    }
  }
}

TEST(DenseWork, SegmentsHaveAllBlocksInTurn) {
  for (const DenseFormat format : {DenseFormat::kFp8, DenseFormat::kBf16}) {
    for (int64_t columns = 64; columns < 5000; columns += 64) {
      const DenseShape shape{format, 64, columns, 1};
      const DenseWork work = MakeDenseWork({&shape, 1}, 1, 132);
      int32_t next = 0;
      for (int32_t segment = 0; segment < work.segments; ++segment) {
        const BlockRange blocks = BlocksOf(work.parts[0], segment, segment + 1);
        ASSERT_EQ(blocks.begin, next);
        ASSERT_GT(blocks.end, blocks.begin);
        ASSERT_LE((blocks.end - blocks.begin) * shape.block_k(), kSegmentK);
        next = blocks.end;
      }
      ASSERT_EQ(next, shape.k_blocks()) << columns;
    }
  }
}

}  // namespace
}  // namespace halfbyte::sm90
