#include "kernels/kv_row/kv_row_cuda.h"

#include <vector>

#include "kernels/device_step_test_tables.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

class StoreRowsCuda : public GpuTest {
 protected:
  void Check(int64_t head_dim, int64_t rope_dim, int64_t low_rank,
             const std::vector<int64_t>& positions, const std::vector<int64_t>& counts,
             int64_t padding, uint32_t seed) {
    constexpr int64_t kPageRows = 64, kPages = 40;
    const KvRow layout{KvFormat::kFp8, head_dim, rope_dim};
    std::vector<int32_t> ids(kPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    std::vector<TestSequence> sequences;
    for (size_t i = 0; i < positions.size(); ++i) {
      const auto pages =
          static_cast<size_t>((positions[i] + counts[i] + kPageRows - 1) / kPageRows);
      sequences.push_back({.position = positions[i], .count = counts[i]});
      sequences.back().pages.assign(ids.end() - static_cast<int64_t>(pages), ids.end());
      ids.resize(ids.size() - pages);
    }
    const TestStep step(sequences, padding);
    const TestRope rope(rope_dim, 2000);
    const int64_t tokens = step.count();
    std::vector<float> window = RandomNormal(tokens * head_dim, seed, 3, Rounding::kBf16),
                       queries = RandomNormal(tokens * low_rank, seed + 1, 2, Rounding::kBf16);
    const std::vector<float> window_norm = RandomNormal(head_dim, seed + 2),
                             low_rank_norm = RandomNormal(low_rank, seed + 3);
    const auto bits = [](const std::vector<float>& x) {
      std::vector<Bf16> all;
      for (const float value : x) all.push_back(ToBf16(value));
      return all;
    };
    const DeviceArray<Bf16> device_window(bits(window));
    DeviceArray<Bf16> device_low_rank(bits(queries));
    const DeviceArray<float> device_window_norm(window_norm), device_low_rank_norm(low_rank_norm);
    const int64_t main = layout.fp8_dim() + 2 * rope_dim;
    DeviceArray<std::byte> pool(static_cast<size_t>(kPages * kPageRows * layout.bytes()));
    const DeviceRows rows{pool.data(), kPageRows, main, layout.bytes() - main};
    ASSERT_TRUE(Finish(LaunchStoreRows({.tokens = step.tokens(),
                                        .sequences = step.sequences(),
                                        .rope = rope.device(),
                                        .low_rank = device_low_rank.data(),
                                        .low_rank_columns = low_rank,
                                        .low_rank_norm = device_low_rank_norm.data(),
                                        .window = device_window.data(),
                                        .head_dim = head_dim,
                                        .window_norm = device_window_norm.data(),
                                        .eps = 1e-6f,
                                        .rows = rows},
                                       stream.get())));
    ThreadPool threads(2);
    const Context context(threads);
    const MatrixView<float> window_rows{window.data(), tokens, head_dim},
        query_rows{queries.data(), tokens, low_rank};
    RmsNorm(context, query_rows, low_rank_norm.data(), 1e-6f, Rounding::kBf16, query_rows);
    EXPECT_EQ(device_low_rank.Read(), bits(queries));
    RmsNorm(context, window_rows, window_norm.data(), 1e-6f, Rounding::kBf16, window_rows);
    std::vector<std::byte> stored(pool.size(), std::byte{0xff});
    for (size_t s = 0; s < sequences.size(); ++s) {
      const PagedRows view{stored.data(), sequences[s].pages.data(), kPageRows, layout.bytes()};
      for (int64_t i = 0; i < counts[s]; ++i) {
        const int64_t position = positions[s] + i;
        float* const row = window_rows.row(step.spans()[s].first + i);
        RotatePairs(&rope.angles.cos[static_cast<size_t>(position * rope_dim / 2)],
                    &rope.angles.sin[static_cast<size_t>(position * rope_dim / 2)], rope_dim / 2,
                    false, Rounding::kBf16, row + head_dim - rope_dim);
        EncodeKvRow(layout, row, view.row(position));
      }
    }
    EXPECT_EQ(pool.Read(), InTwoParts(stored, rows, layout.scale_count()))
        << head_dim << " numbers, " << tokens << " tokens";
  }
};

TEST_F(StoreRowsCuda, StoresTheCpusBytesAndNothingForPadding) {
  Check(512, 64, 1024, {0, 63, 700}, {1, 2, 65}, 0, 1);
  Check(128, 32, 128, {130}, {1}, 3, 2);
  Check(512, 64, 1536, {5, 0, 64, 1000}, {1, 1, 1, 1}, 4, 3);
  Check(128, 32, 128, {0}, {300}, 0, 4);
}

}  // namespace
}  // namespace halfbyte
