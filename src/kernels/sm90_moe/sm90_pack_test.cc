#include "kernels/sm90_moe/sm90_pack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "numerics/bf16.h"

namespace halfbyte::sm90 {
namespace {

struct RandomExpert {
  Nvfp4Matrix gate, up, down;

  RandomExpert(int64_t hidden, int64_t intermediate, uint32_t seed)
      : gate(intermediate, hidden, GlobalScale(1.0f)),
        up(intermediate, hidden, GlobalScale(1.0f)),
        down(hidden, intermediate, GlobalScale(1.0f)) {
    std::mt19937 random(seed);
    for (Nvfp4Matrix* m : {&gate, &up, &down}) {
      for (int64_t i = 0; i < m->rows() * m->k() / 2; ++i) {
        m->codes()[i] = static_cast<uint8_t>(random());
      }
      for (int64_t i = 0; i < m->view().scale_layout().bytes(); ++i) {
        m->block_scales()[i] = static_cast<uint8_t>(random() % 0x7f);
      }
    }
  }
  Nvfp4Expert view() const { return {gate.view(), up.view(), down.view()}; }
};

// Codes under a zero scale are the only thing that packing changes.
void ExpectUnpacks(const Nvfp4View& before, const Nvfp4View& after) {
  ASSERT_EQ(before.rows, after.rows);
  ASSERT_EQ(before.k, after.k);
  for (int64_t i = 0; i < before.scale_layout().bytes(); ++i) {
    ASSERT_EQ(before.block_scales[i], after.block_scales[i]) << "block " << i;
    for (int64_t j = 0; j < 8; ++j) {
      const int code = before.block_scales[i] == 0 ? 0 : before.codes[8 * i + j];
      ASSERT_EQ(code, after.codes[8 * i + j]) << "block " << i;
    }
  }
}

void ExpectRoundTrip(const Nvfp4Expert& expert) {
  ThreadPool pool(2);
  std::vector<uint8_t> packed(static_cast<size_t>(expert.shape().bytes()), 0xee);
  PackExpert(pool, expert, packed.data());
  const UnpackedExpert back = UnpackExpert(expert.shape(), packed.data());
  ExpectUnpacks(expert.gate, back.gate.view());
  ExpectUnpacks(expert.up, back.up.view());
  ExpectUnpacks(expert.down, back.down.view());
}

// bf16 multiplication of numbers whose product is exact.
float Bf16Product(uint16_t a, uint16_t b) {
  return std::bit_cast<float>(uint32_t{a} << 16) * std::bit_cast<float>(uint32_t{b} << 16);
}

// What the device does with a woven word (sm90_decode.cuh): a pair of bf16 numbers.
uint32_t Fragment(uint32_t w, int fragment) {
  if (fragment == 0) return w & 0x81c081c0u;
  if (fragment == 1) return (w << 6) & 0x81c081c0u;
  if (fragment == 2) return std::rotl(w, 12) & 0x81c081c0u;
  return ((w << 2) & 0x80c080c0u) | ((w >> 6) & 0x01000100u);
}

// Words whose first or second columns hold every combination of codes, beside random ones.
std::vector<uint32_t> Words() {
  std::mt19937 random(9);
  std::vector<uint32_t> words;
  for (uint32_t codes = 0; codes < 65536; ++codes) {
    for (int upper = 0; upper < 2; ++upper) {
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) {
        word |= WeaveCode(codes >> (4 * i) & 15, i, upper);
        word |= WeaveCode(random() & 15, i, 1 - upper);
      }
      words.push_back(word);
    }
  }
  return words;
}

// A code as the bf16 number code * 2^-126.
uint16_t SmallBf16(uint32_t code) {
  return static_cast<uint16_t>((code & 8) << 12 | (code & 7) << 6);
}

TEST(Sm90Layout, ShiftsAndMasksTakeEveryCodeOutOfAWovenWord) {
  int64_t wrong = 0;
  for (const uint32_t word : Words()) {
    for (int i = 0; i < 8; ++i) {
      const auto have = static_cast<uint16_t>(Fragment(word, i % 4) >> (i / 4 * 16));
      wrong += have != SmallBf16(UnweaveCode(word, i % 4, i / 4));
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Sm90Layout, EveryCodeTimesEveryScaleIsTheExactProduct) {
  for (int e4m3 = 1; e4m3 < 0x7f; ++e4m3) {
    const uint32_t byte = ScaleByte(static_cast<uint8_t>(e4m3));
    ASSERT_LE(byte, 143u);
    const auto scale = static_cast<uint16_t>(byte * 0x10u + 0x7680u);
    for (uint8_t code = 0; code < 16; ++code) {
      const float value = E2m1ToFloat(code) * E4m3ToFloat(static_cast<uint8_t>(e4m3));
      const float product = Bf16Product(SmallBf16(code), scale);
      ASSERT_EQ(product * kEpilogueFactor, value) << "scale " << e4m3;
      ASSERT_EQ(std::signbit(product), std::signbit(value));
      ASSERT_EQ(RoundToBf16(product), product);
    }
  }
}

TEST(Sm90Layout, AWordHasAPlaceForEveryBit) {
  uint32_t seen = 0;
  for (int i = 0; i < 32; ++i) {
    const uint32_t bit = 1u << WovenBit(i / 8, i / 4 % 2, i % 4);
    EXPECT_EQ(seen & bit, 0u);
    seen |= bit;
  }
  EXPECT_EQ(seen, 0xffffffffu);
  for (uint32_t codes = 0; codes < 65536; ++codes) {
    const uint32_t word = WeaveWord(codes, ~codes & 0xffff);
    for (int column = 0; column < 4; ++column) {
      const uint32_t code = codes >> (4 * column) & 15;
      ASSERT_EQ(UnweaveCode(word, column / 2 * 2, column % 2), code);
      ASSERT_EQ(UnweaveCode(word, column / 2 * 2 + 1, column % 2), ~code & 15);
    }
  }
}

TEST(Sm90Layout, ScaleBytesGoBackAndForth) {
  for (int e4m3 = 0; e4m3 < 0x7f; ++e4m3) {
    const uint8_t byte = ScaleByte(static_cast<uint8_t>(e4m3));
    EXPECT_EQ(E4m3OfScaleByte(byte), e4m3);
    EXPECT_EQ(byte == kZeroScaleByte, e4m3 == 0);
  }
}

TEST(Sm90Layout, ColumnsAndRowsArePermutedWithinTheirGroups) {
  const int64_t first[] = {0, 1, 16, 17, 32, 33, 48, 49, 2, 3, 18, 19, 34, 35, 50, 51};
  for (int64_t p = 0; p < 16; ++p) EXPECT_EQ(ColumnAtPosition(p), first[p]);
  for (int64_t c = 0; c < 64; ++c) EXPECT_EQ(ColumnAtPosition(KPosition(c)), c);
  for (int64_t row = 0; row < 1024; ++row) EXPECT_EQ(RowOfGateUp(GateUpRowAt(row)), row);
}

TEST(Sm90Layout, AnImageHoldsEveryColumnOfEveryRowOnce) {
  const TokenTile tile{0, 16, 24};
  std::vector<int> seen(static_cast<size_t>(ImageBytes(24, 600)) / 2);
  for (int64_t row = 0; row < 24; ++row) {
    for (int64_t column = 0; column < PaddedK(600); ++column) {
      const int64_t at = ImageOffset(tile, 600, row, column) - ImageBytes(16, 600);
      ASSERT_EQ(at % 2, 0);
      ++seen[static_cast<size_t>(at / 2)];
    }
  }
  for (const int count : seen) ASSERT_EQ(count, 1);
}

TEST(Sm90Pack, ABlockTakes18432Bytes) {
  const ExpertShape flash{4096, 2048};
  EXPECT_EQ(flash.gate_up().bytes(), 512 * 18432);
  EXPECT_EQ(flash.down().bytes(), 256 * 18432);
  const ExpertShape odd{2880, 2880};  // gpt-oss: K is filled to 3,072, channels to 64
  EXPECT_EQ(odd.gate_up().bytes(), 90 * 6 * 18432);
  EXPECT_EQ(odd.down().bytes(), 45 * 6 * 18432);
}

TEST(Sm90Pack, UnpackingGivesTheCodesAndScalesBack) {
  ExpectRoundTrip(RandomExpert(1024, 512, 1).view());
  ExpectRoundTrip(RandomExpert(720, 208, 2).view());  // nothing a multiple of anything but 16
  ExpectRoundTrip(RandomExpert(16, 16, 3).view());
  ExpectRoundTrip(RandomExpert(80, 1040, 4).view());
}

TEST(Sm90Pack, FillsRowsAndColumnsWithZeros) {
  const RandomExpert expert(80, 80, 5);
  ThreadPool pool(1);
  const ExpertShape shape{80, 80};
  // Seen as an expert of the padded sizes, whose gate_up has the same strips and blocks (and whose
  // down has more rows, which are not looked at).
  const ExpertShape padded{512, 128};
  ASSERT_EQ(shape.gate_up().bytes(), padded.gate_up().bytes());
  std::vector<uint8_t> packed(static_cast<size_t>(padded.bytes()), 0xee);
  PackExpert(pool, expert.view(), packed.data());
  const UnpackedExpert back = UnpackExpert(padded, packed.data());
  for (int64_t row = 0; row < 128; ++row) {
    for (int64_t column = 0; column < 512; ++column) {
      if (row < 80 && column < 80) continue;
      ASSERT_EQ(back.gate.view().at(row, column), 0);
      ASSERT_EQ(back.up.view().at(row, column), 0);
    }
  }
}

}  // namespace
}  // namespace halfbyte::sm90
