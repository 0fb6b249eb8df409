#include "tensor/gate_up_interleave.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace halfbyte {
namespace {

TEST(GateUpInterleave, OrdersGroupsOfEightRows) {  // R32
  std::vector<uint8_t> gate(24), up(24), both(48);
  for (size_t c = 0; c < 24; ++c) {
    gate[c] = static_cast<uint8_t>(c);
    up[c] = static_cast<uint8_t>(100 + c);
  }
  InterleaveGateUp(gate, up, 24, both);
  EXPECT_EQ(both, (std::vector<uint8_t>{
                      0,  1,  2,  3,  4,  5,  6,  7,  100, 101, 102, 103, 104, 105, 106, 107,
                      8,  9,  10, 11, 12, 13, 14, 15, 108, 109, 110, 111, 112, 113, 114, 115,
                      16, 17, 18, 19, 20, 21, 22, 23, 116, 117, 118, 119, 120, 121, 122, 123}));
}

TEST(GateUpInterleave, CodesAndScalesGoTheSameWayAndComeBackByteForByte) {  // R32
  constexpr int64_t kChannels = 352, kK = 416;
  std::mt19937 random(1);
  for (const int64_t row_bytes : {kK / 2, kK / 16}) {  // of codes, of block scales
    const auto size = static_cast<size_t>(kChannels * row_bytes);
    std::vector<uint8_t> gate(size), up(size), both(2 * size), gate_back(size), up_back(size);
    for (uint8_t& byte : gate) byte = static_cast<uint8_t>(random());
    for (uint8_t& byte : up) byte = static_cast<uint8_t>(random());
    InterleaveGateUp(gate, up, kChannels, both);
    for (int64_t c = 0; c < kChannels; ++c) {
      const auto bytes = static_cast<size_t>(row_bytes);
      EXPECT_EQ(std::memcmp(&both[static_cast<size_t>(InterleavedGateRow(c)) * bytes],
                            &gate[static_cast<size_t>(c) * bytes], bytes),
                0);
      EXPECT_EQ(std::memcmp(&both[static_cast<size_t>(InterleavedUpRow(c)) * bytes],
                            &up[static_cast<size_t>(c) * bytes], bytes),
                0);
    }
    DeinterleaveGateUp(both, kChannels, gate_back, up_back);
    EXPECT_EQ(gate_back, gate);
    EXPECT_EQ(up_back, up);
  }
}

}  // namespace
}  // namespace halfbyte
