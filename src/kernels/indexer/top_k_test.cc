#include "kernels/indexer/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace halfbyte {
namespace {

std::vector<int32_t> Choose(const std::vector<float>& scores, int64_t keep) {
  std::vector<uint32_t> scratch(scores.size());
  std::vector<int32_t> ids(static_cast<size_t>(keep), -7);
  TopK(scores, keep, scratch.data(), ids.data());
  return ids;
}

// By a stable sort.
std::vector<int32_t> Expected(std::vector<float> scores, int64_t keep) {
  for (float& score : scores) {
    if (std::isnan(score)) score = -INFINITY;
  }
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  ids.resize(static_cast<size_t>(keep));
  std::ranges::sort(ids);
  return ids;
}

TEST(TopK, EqualsAStableSort) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const size_t count : {1, 2, 3, 5, 31, 512, 2049, 5000}) {
    for (const int kind : {0, 1, 2, 3}) {
      std::vector<float> scores(count);
      for (float& score : scores) {
        score = normal(random);
        if (kind == 1) score = std::max(0.0f, score - 1);               // mostly the same 0
        if (kind == 2) score = std::round(score);                       // few different ones
        if (kind == 3) score = 1 + std::ldexp(std::round(score), -23);  // neighbours
      }
      for (const size_t keep : {size_t{1}, count / 3 + 1, count - count / 5, count}) {
        EXPECT_EQ(Choose(scores, static_cast<int64_t>(keep)),
                  Expected(scores, static_cast<int64_t>(keep)))
            << keep << " of " << count << ", kind " << kind;
      }
    }
  }
}

TEST(TopK, OrdersSignsZerosInfinitiesAndNan) {
  const float tiny = 0x1p-149f;
  const std::vector<float> scores = {NAN, -0.0f,     0.0f, -tiny, INFINITY,
                                     -1,  -INFINITY, tiny, -NAN,  3e38f};
  for (int64_t keep = 1; keep <= std::ssize(scores); ++keep) {
    EXPECT_EQ(Choose(scores, keep), Expected(scores, keep)) << keep;
  }
  EXPECT_EQ(Choose({0.0f, -0.0f, 0.0f}, 2), (std::vector<int32_t>{0, 1}));  // zeros are equal
  EXPECT_EQ(Choose({NAN, -INFINITY, NAN, 1}, 3), (std::vector<int32_t>{0, 1, 3}));
}

}  // namespace
}  // namespace halfbyte
