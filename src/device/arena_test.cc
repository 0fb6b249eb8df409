#include "device/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace halfbyte {
namespace {

TEST(Arena, PiecesAreAlignedAndDoNotOverlap) {
  Arena arena;
  std::mt19937 random(1);
  std::vector<std::pair<std::byte*, size_t>> pieces;
  for (int i = 0; i < 300; ++i) {
    const auto size = static_cast<size_t>(i % 50 == 49 ? 3 << 20 : random() % 9000);
    auto* piece = arena.Take<std::byte>(static_cast<int64_t>(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 64, 0u);
    std::memset(piece, i & 0xff, size);
    pieces.emplace_back(piece, size);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [piece, size] = pieces[i];
    for (size_t at = 0; at < size; at += 61) {
      ASSERT_EQ(piece[at], static_cast<std::byte>(i & 0xff)) << "piece " << i << " at " << at;
    }
  }
}

TEST(Arena, MatrixHasTheShapeAskedFor) {
  Arena arena;
  const MatrixView<float> floats = arena.Matrix(3, 5);
  EXPECT_EQ(floats.rows, 3);
  EXPECT_EQ(floats.columns, 5);
  const MatrixView<int32_t> ints = arena.Matrix<int32_t>(0, 7);  // nothing to hold is valid
  EXPECT_EQ(ints.rows, 0);
  EXPECT_NE(floats.data, nullptr);
}

TEST(Arena, AScopeTakesBackWhatWasTakenInside) {
  Arena arena;
  float* outer = arena.Take<float>(10);
  *outer = 1;
  float* inner = nullptr;
  {
    const Arena::Scope scope(arena);
    inner = arena.Take<float>(10);
    {
      const Arena::Scope nested(arena);
      arena.Take<float>(5 << 20);  // in a block of its own
    }
    EXPECT_NE(inner, outer);
  }
  EXPECT_EQ(arena.Take<float>(10), inner);
  EXPECT_EQ(*outer, 1);
}

// One step: some pieces, and scopes with pieces of up to several blocks.
void Step(Arena& arena, int64_t size) {
  arena.Reset();
  arena.Take<float>(size);
  for (int64_t layer = 1; layer < 6; ++layer) {
    const Arena::Scope scope(arena);
    arena.Take<float>(size * layer);
    const Arena::Scope inner(arena);
    arena.Take<float>(size / 2);
    arena.Take<float>(size);
  }
  arena.Take<float>(size * 3);
}

TEST(Arena, NothingIsAllocatedAfterTheLargestStep) {
  Arena arena;
  EXPECT_EQ(arena.capacity_bytes(), 0);
  Step(arena, 100000);
  const int64_t capacity = arena.capacity_bytes();
  EXPECT_GT(capacity, 0);
  for (const int64_t size : {100000, 99999, 31, 50000, 70001, 100000}) {
    Step(arena, size);
    EXPECT_EQ(arena.capacity_bytes(), capacity) << size;
  }
}

TEST(Arena, ResetHandsOutTheSameMemoryAgain) {
  Arena arena;
  auto* first = arena.Take<double>(100);
  arena.Take<double>(100);
  arena.Reset();
  EXPECT_EQ(arena.Take<double>(100), first);
}

}  // namespace
}  // namespace halfbyte
