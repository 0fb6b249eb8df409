#include "kernels/packed_linear/packed_matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/packed_linear/packed_test_weights.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

struct Size {
  int64_t rows, columns;
};
constexpr Size kSizes[] = {{16, 64}, {1, 16}, {17, 80}, {32, 128}, {40, 208}, {129, 576}};

TEST(PackedMatrix, UnpacksToTheBytesItWasMadeOf) {
  for (const auto& [rows, columns] : kSizes) {
    const FourBitWeights w(WeightFormat::kNvfp4, rows, columns, 1);
    const Nvfp4Matrix back = UnpackMatrix(OwnedPacked(w.matrix).matrix);
    const Nvfp4View view = back.view();
    EXPECT_EQ(std::memcmp(view.codes, w.codes.data(), w.codes.size()), 0) << rows << columns;
    EXPECT_EQ(std::memcmp(view.block_scales, w.scales.data(), w.scales.size()), 0);
  }
}

TEST(PackedMatrix, EveryCodeAndEveryScaleByteSurvives) {  // R57, R106
  // Row r holds scale byte r; the columns hold all codes.
  FourBitWeights w(WeightFormat::kNvfp4, 0x7f, 64, 2);
  for (size_t i = 0; i < w.codes.size(); ++i) w.codes[i] = static_cast<std::byte>(i * 0x1f);
  for (size_t i = 0; i < w.scales.size(); ++i) w.scales[i] = static_cast<std::byte>(i / 4);
  w.matrix.global_scale = GlobalScale(0.37f);
  const Nvfp4Matrix back = UnpackMatrix(OwnedPacked(w.matrix).matrix);
  EXPECT_EQ(std::memcmp(back.view().codes, w.codes.data(), w.codes.size()), 0);
  EXPECT_EQ(std::memcmp(back.view().block_scales, w.scales.data(), w.scales.size()), 0);
  EXPECT_EQ(back.view().global_scale, GlobalScale(0.37f));
}

TEST(PackedMatrix, BytesStandWhereTheHeaderSays) {
  const FourBitWeights w(WeightFormat::kNvfp4, 24, 128, 3);
  OwnedPacked packed(w.matrix);
  ASSERT_EQ(packed.matrix.bytes(), 2 * 2 * 576);
  const auto* codes = reinterpret_cast<const uint8_t*>(w.codes.data());
  for (int64_t row = 0; row < 32; ++row) {
    for (int64_t column = 0; column < 128; ++column) {
      const uint8_t* tile = packed.matrix.data + (row / 16 * 2 + column / 64) * 576;
      const int64_t in_block = column % 16;
      const uint8_t byte =
          tile[64 + column % 64 / 16 * 128 + in_block / 8 * 64 + row % 16 * 4 + in_block % 4];
      const int code = in_block % 8 < 4 ? byte & 15 : byte >> 4;
      const int64_t element = row * 128 + column;
      EXPECT_EQ(code, row < 24 ? UnpackE2m1(codes, element) : 0);
      EXPECT_EQ(tile[column % 64 / 16 * 16 + row % 16],
                row < 24
                    ? PackedScale(static_cast<uint8_t>(w.scales[static_cast<size_t>(element / 16)]))
                    : 0);
    }
  }
}

TEST(PackedMatrix, ScaleBytesKeepTheirNumberAndAreNormalInFp32) {
  for (int byte = 0; byte <= 0x7e; ++byte) {
    const uint8_t packed = PackedScale(static_cast<uint8_t>(byte));
    const float value = E4m3ToFloat(static_cast<uint8_t>(byte));
    EXPECT_EQ(PackedScaleToFloat(packed), value) << byte;
    const auto shifted = std::bit_cast<float>(uint32_t{packed} << 20);
    EXPECT_TRUE(byte == 0 ? shifted == 0 : std::isnormal(shifted)) << byte;
    EXPECT_EQ(shifted * 0x1p117f, value) << byte;
  }
}

TEST(PackedMatrix, TheNumberOfThreadsChangesNoByte) {
  const FourBitWeights w(WeightFormat::kNvfp4, 1000, 1040, 4);
  OwnedPacked one(w.matrix);
  PackMemory memory(one.matrix.bytes());
  ThreadPool pool(3);
  ASSERT_TRUE(PackMatrix(pool, w.matrix, memory.data(), "w").has_value());
  EXPECT_EQ(std::memcmp(memory.data(), one.matrix.data, static_cast<size_t>(one.matrix.bytes())),
            0);
}

TEST(PackedMatrix, ScaleBytesThatMeanNothingAreRefusedByName) {  // R105
  for (const int bad : {0x7f, 0x80, 0xb8, 0xff}) {
    FourBitWeights w(WeightFormat::kNvfp4, 33, 96, 5);
    w.scales[32 * 6 + 5] = static_cast<std::byte>(bad);
    PackMemory memory(PackedMatrix{33, 96}.bytes());
    ThreadPool pool(1);
    const auto packed = PackMatrix(pool, w.matrix, memory.data(), "layer 3, expert 2, up");
    ASSERT_FALSE(packed.has_value());
    EXPECT_NE(packed.error().message.find("layer 3, expert 2, up"), std::string::npos);
    EXPECT_NE(packed.error().message.find("[32, 5]"), std::string::npos);
  }
}

TEST(PackedMatrix, Mxfp4KeepsItsNumbers) {  // R108
  for (const int first : {1 + 16, 100, 230}) {
    const FourBitWeights w(WeightFormat::kMxfp4, 19, 160, 6, first, first + 17);
    const Nvfp4Matrix back = UnpackMatrix(OwnedPacked(w.matrix).matrix);
    std::vector<float> expected(160);
    for (int64_t row = 0; row < 19; ++row) {
      DequantizeRow(w.matrix, row, expected.data());
      for (int64_t column = 0; column < 160; ++column) {
        EXPECT_EQ(back.view().at(row, column), expected[static_cast<size_t>(column)]);
      }
    }
  }
}

TEST(PackedMatrix, Mxfp4BeyondTheRangeOfE4m3IsLeftAlone) {
  FourBitWeights w(WeightFormat::kMxfp4, 16, 64, 7, 120, 120);
  w.scales[3] = std::byte{102};  // 18 binades below
  PackMemory memory(PackedMatrix{16, 64}.bytes());
  ThreadPool pool(1);
  auto packed = PackMatrix(pool, w.matrix, memory.data(), "w");
  ASSERT_TRUE(packed.has_value());
  EXPECT_FALSE(packed->has_value());
  // A block of zeros may have any scale.
  std::fill_n(w.codes.begin() + 3 * 16, 16, std::byte{0x80});
  packed = PackMatrix(pool, w.matrix, memory.data(), "w");
  ASSERT_TRUE(packed.has_value());
  EXPECT_TRUE(packed->has_value());
  w.scales[0] = std::byte{0xff};
  EXPECT_FALSE(PackMatrix(pool, w.matrix, memory.data(), "w").has_value());
}

}  // namespace
}  // namespace halfbyte
