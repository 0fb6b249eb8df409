#include "device/zeroed_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace halfbyte {
namespace {

// Pieces that share huge pages, and such that have their own, among them one of each kind that
// goes early.
TEST(ZeroedMemory, PiecesAreZeroAndTheirOwnWhateverTheirNeighboursDo) {
  constexpr int64_t kSizes[] = {100, 65'536, 5'000'000, 1'900'000, 4096, 2'097'152, 1, 1'500'000};
  for (const Pages pages : {Pages::kSmall, Pages::kHuge}) {
    std::vector<ZeroedMemory> pieces;
    for (int round = 0; round < 40; ++round) {
      const int64_t size = kSizes[round % std::ssize(kSizes)];
      auto piece = ZeroedMemory::Allocate(size, "test", pages);
      ASSERT_TRUE(piece) << piece.error().message;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(piece->data()) % 4096, 0);
      EXPECT_TRUE(std::all_of(piece->data(), piece->data() + size,
                              [](std::byte b) { return b == std::byte{0}; }));
      std::fill_n(piece->data(), size, static_cast<std::byte>(round + 1));
      if (round % 3 != 0) pieces.push_back(*std::move(piece));
    }
    size_t kept = 0;
    for (int round = 0; round < 40; ++round) {
      if (round % 3 == 0) continue;
      const ZeroedMemory& piece = pieces[kept++];
      const int64_t size = kSizes[round % std::ssize(kSizes)];
      EXPECT_TRUE(std::all_of(piece.data(), piece.data() + size,
                              [&](std::byte b) { return b == static_cast<std::byte>(round + 1); }))
          << "piece " << round;
    }
  }
}

TEST(ZeroedMemory, OfNoBytesIsNothing) {
  EXPECT_EQ(ZeroedMemory::Allocate(0, "test", Pages::kHuge)->data(), nullptr);
}

TEST(ZeroedMemory, ThatCannotBeHadIsAnErrorWithItsPurpose) {
  for (const Pages pages : {Pages::kSmall, Pages::kHuge}) {
    const auto memory = ZeroedMemory::Allocate(int64_t{1} << 60, "a test", pages);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().message.rfind("a test: cannot reserve", 0), 0);
  }
}

}  // namespace
}  // namespace halfbyte
