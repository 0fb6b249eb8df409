#include "kernels/compressor/compressor_cuda.h"

#include <optional>
#include <vector>

#include "kernels/compressor/compressor.h"
#include "kernels/device_step_test_tables.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

struct Shape {
  CompressedRowKind kind;
  int64_t rate;
  int64_t dim;
  int64_t rope_dim;
};

class CompressCuda : public GpuTest {
 protected:
  static constexpr int64_t kSequences = 3, kPages = 16;

  // Steps of so many tokens of each sequence, after one another: rows and rings after each.
  void Check(const Shape& shape, const std::vector<std::vector<int64_t>>& steps, int64_t padding,
             uint32_t seed) {
    const bool overlap = shape.rate == 4, attention = shape.kind == CompressedRowKind::kAttention;
    const KvRow kv_row{KvFormat::kFp8, shape.dim, shape.rope_dim};
    const IndexRow index_row{IndexFormat::kMxfp4, shape.dim};
    const int64_t channels = overlap ? 2 * shape.dim : shape.dim;
    const int64_t ring_rows = overlap ? 8 : shape.rate, slot_floats = ring_rows * 2 * channels + 64;
    const int64_t page_rows = 256 / shape.rate;
    const int64_t row_bytes = attention ? kv_row.bytes() : index_row.bytes();
    const int64_t main = attention ? kv_row.fp8_dim() + 2 * shape.rope_dim : shape.dim / 2;
    const int64_t scales = attention ? kv_row.scale_count() : index_row.scale_count();
    const std::vector<float> bias = RandomNormal(shape.rate * channels, seed, 0.5),
                             norm = RandomNormal(shape.dim, seed + 1);
    const DeviceArray<float> device_bias(bias), device_norm(norm);
    const TestRope rope(shape.rope_dim, 4096);
    DeviceArray<std::byte> pool(static_cast<size_t>(kPages * page_rows * row_bytes));
    const DeviceRows rows{pool.data(), page_rows, main, row_bytes - main};
    std::vector<std::byte> stored(pool.size(), std::byte{0xff});
    std::vector<float> rings(static_cast<size_t>(kSequences * slot_floats), -7.5f);
    DeviceArray<float> device_rings(rings);
    std::vector<int32_t> ids(kPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    std::vector<TestSequence> sequences;
    for (int32_t s = 0; s < kSequences; ++s) {
      sequences.push_back({.slot = 2 - s, .replay_end = s == 1 ? 2 * shape.rate : 0});
      sequences.back().pages.assign(ids.begin() + 5 * s, ids.begin() + 5 * s + 5);
    }
    ThreadPool threads(2);
    const Context context(threads);
    for (const std::vector<int64_t>& counts : steps) {
      ++seed;
      for (size_t s = 0; s < sequences.size(); ++s) sequences[s].count = counts[s];
      const TestStep step(sequences, padding);
      const std::vector<float> kv = RandomNormal(step.count() * channels, seed + 100),
                               score = RandomNormal(step.count() * channels, seed + 200, 2);
      const DeviceArray<float> device_kv(kv), device_score(score);
      ASSERT_TRUE(Finish(LaunchCompress({.tokens = step.tokens(),
                                         .sequences = step.sequences(),
                                         .rope = rope.device(),
                                         .kv = device_kv.data(),
                                         .score = device_score.data(),
                                         .position_bias = device_bias.data(),
                                         .norm = device_norm.data(),
                                         .eps = 1e-6f,
                                         .rate = shape.rate,
                                         .dim = shape.dim,
                                         .overlap = overlap,
                                         .kind = shape.kind,
                                         .rows = rows,
                                         .rings = device_rings.data() + 32,
                                         .slot_stride = slot_floats,
                                         .ring_rows = ring_rows},
                                        stream.get())));
      std::vector<CompressorSequence> on_host(sequences.size());
      for (size_t s = 0; s < sequences.size(); ++s) {
        static_cast<TokenSpan&>(on_host[s]) = step.spans()[s];
        on_host[s].ring = {rings.data() + sequences[s].slot * slot_floats + 32, ring_rows};
        on_host[s].entries = {stored.data(), sequences[s].pages.data(), page_rows, row_bytes};
        on_host[s].first_entry = sequences[s].replay_end / shape.rate;
      }
      const Compressor compressor{.rate = shape.rate,
                                  .overlap = overlap,
                                  .dim = shape.dim,
                                  .position_bias = bias.data(),
                                  .norm = norm.data(),
                                  .norm_eps = 1e-6f,
                                  .rope_frequencies = rope.frequencies};
      const MatrixView<const float> kv_rows{kv.data(), step.count() - padding, channels},
          score_rows{score.data(), step.count() - padding, channels};
      if (attention) {
        Compress(context, compressor, on_host, kv_rows, score_rows, Rounding::kBf16, kv_row);
      } else {
        Compress(context, compressor, on_host, kv_rows, score_rows, Rounding::kBf16, index_row);
      }
      SCOPED_TRACE(testing::Message()
                   << "rate " << shape.rate << ", dim " << shape.dim << ", steps of " << counts[0]
                   << ", " << counts[1] << ", " << counts[2]);
      ASSERT_EQ(pool.Read(), InTwoParts(stored, rows, scales));
      ASSERT_TRUE(SameBits(device_rings.Read(), rings)) << "rings";
      for (size_t s = 0; s < sequences.size(); ++s) sequences[s].position += counts[s];
    }
  }
};

TEST_F(CompressCuda, StoresTheCpusBytesHoweverTokensCome) {
  using enum CompressedRowKind;
  uint32_t seed = 1;
  for (const Shape& shape : {Shape{kAttention, 4, 512, 64}, Shape{kAttention, 4, 128, 32},
                             Shape{kAttention, 128, 512, 64}, Shape{kAttention, 128, 128, 32},
                             Shape{kIndex, 4, 128, 64}, Shape{kIndex, 4, 64, 32}}) {
    std::vector<std::vector<int64_t>> single(40, {1, 1, 0});
    Check(shape, single, 2, seed += 1000);
    Check(shape, {{300, 1, 0}, {1, 7, 128}, {3, 8, 1}, {4, 200, 255}, {1, 1, 1}, {259, 64, 3}}, 0,
          seed += 1000);
    Check(shape, {{1000, 3, 5}, {1, 129, 2}, {6, 1, 1}, {9, 9, 9}}, 5, seed += 1000);
  }
}

}  // namespace
}  // namespace halfbyte
