#include "kernels/indexer/top_k_cuda.h"

#include <cmath>
#include <random>

#include "device/cuda/gpu_test.h"
#include "kernels/indexer/ordered_score.h"
#include "kernels/indexer/top_k.h"

namespace halfbyte {
namespace {

class TopKCuda : public GpuTest {
 protected:
  // Tokens that see 1, 2, ... of these scores and the last of them all.
  void Compare(const std::vector<float>& scores, int64_t top_k, const std::vector<int64_t>& visible,
               int64_t stride) {
    const auto tokens = std::ssize(visible);
    std::vector<int32_t> positions;
    std::vector<uint32_t> ordered(static_cast<size_t>(tokens * stride), 0xffffffffu);
    std::vector<int32_t> want(static_cast<size_t>(tokens * top_k), -1), want_counts;
    std::vector<uint32_t> scratch(scores.size());
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t sees = visible[static_cast<size_t>(t)];
      positions.push_back(static_cast<int32_t>(sees - 1));
      for (int64_t e = 0; e < sees && sees > top_k; ++e) {
        ordered[static_cast<size_t>(t * stride + e)] = OrderedScore(scores[static_cast<size_t>(e)]);
      }
      const int64_t keep = std::min(top_k, sees);
      want_counts.push_back(static_cast<int32_t>(keep));
      int32_t* ids = want.data() + t * top_k;
      if (sees > top_k) {
        TopK({scores.data(), static_cast<size_t>(sees)}, keep, scratch.data(), ids);
      } else {
        for (int64_t i = 0; i < keep; ++i) ids[i] = static_cast<int32_t>(i);
      }
    }
    DeviceArray<int32_t> at(positions), selected(want.size()), counts(want_counts.size());
    DeviceArray<uint32_t> keys(ordered);
    ASSERT_TRUE(Finish(LaunchTopK({.positions = at.data(),
                                   .tokens = tokens,
                                   .rate = 1,
                                   .top_k = top_k,
                                   .scores = keys.data(),
                                   .stride = stride,
                                   .selected = selected.data(),
                                   .counts = counts.data()},
                                  stream.get())));
    EXPECT_EQ(counts.Read(), want_counts);
    const std::vector<int32_t> got = selected.Read();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << "choice " << i % static_cast<size_t>(top_k) << " of "
                                 << visible[i / static_cast<size_t>(top_k)] << " entries, stride "
                                 << stride << ", top " << top_k;
    }
  }

  static std::vector<float> Random(int64_t count, int kind, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> scores(static_cast<size_t>(count));
    for (float& score : scores) {
      score = normal(random);
      if (kind == 1) score = std::max(0.0f, score - 1);               // mostly the same 0
      if (kind == 2) score = std::round(score);                       // few different ones
      if (kind == 3) score = 1 + std::ldexp(std::round(score), -23);  // neighbours
      if (kind == 4) score = 0.25f;                                   // all equal
      if (kind == 5) score = std::ldexp(score, static_cast<int>(random() % 200) - 100);
      if (kind == 6 && random() % 3 == 0) score = NAN;
    }
    return scores;
  }
};

TEST_F(TopKCuda, IsTheCpusForAnyNumberOfEntries) {
  uint32_t seed = 0;
  for (const int64_t count :
       {1, 3, 31, 33, 513, 2047, 2049, 5000, 8192, 32768, 53248, 53252, 90001}) {
    for (int kind = 0; kind < 7; ++kind) {
      const std::vector<float> scores = Random(count, kind, ++seed);
      const int64_t stride = (count + 3) / 4 * 4;
      for (const int64_t top_k : {int64_t{1}, int64_t{512}, count / 3 + 1, count}) {
        Compare(scores, top_k,
                {count, std::max<int64_t>(1, count - 1), count / 2, 0, std::min(count, top_k + 1)},
                stride);
      }
    }
  }
}

TEST_F(TopKCuda, IsTheCpusForManyTokensAndForMoreKeysThanAClusterHolds) {
  for (const int64_t count : {4000, 20000, 45000, 60000}) {
    std::vector<int64_t> visible;
    for (int64_t t = 0; t < 40; ++t) visible.push_back(count - 97 * t);
    for (const int kind : {0, 1, 3}) Compare(Random(count, kind, 50), 300, visible, count);
  }
  for (const int kind : {0, 1, 4}) Compare(Random(500001, kind, 51), 512, {500001, 400000}, 500004);
}

TEST_F(TopKCuda, HasRoomForMoreEntriesThanAnybodySees) {
  const std::vector<float> scores = Random(3000, 0, 99);
  for (const int64_t stride : {3000, 4096, 4100, 60000}) {
    Compare(scores, 256, {3000, 1000, 257, 256, 255, 0}, stride);
  }
}

TEST_F(TopKCuda, OrdersSignsZerosInfinitiesAndNan) {
  const float tiny = 0x1p-149f;
  const std::vector<float> scores = {NAN, -0.0f,     0.0f, -tiny, INFINITY,
                                     -1,  -INFINITY, tiny, -NAN,  3e38f};
  for (int64_t keep = 1; keep <= std::ssize(scores); ++keep) Compare(scores, keep, {10}, 12);
}

}  // namespace
}  // namespace halfbyte
