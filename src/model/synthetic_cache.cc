#include "model/synthetic_cache.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/kv_row/kv_row.h"
#include "numerics/philox.h"

namespace halfbyte {
namespace {

enum class RowKind : uint32_t { kWindow, kEntries, kIndexKeys, kAttentionRing, kIndexerRing };

// Where numbers of one kind come from.
struct Source {
  uint64_t seed;
  uint32_t layer;
  RowKind rows;

  // Uniform in [-2, 2), in steps of 1/64.
  void Draw(int64_t row, std::span<float> out) const {
    const int64_t count = std::ssize(out);
    for (int64_t begin = 0; begin < count; begin += 16) {
      const auto words = Philox4x32(seed, {static_cast<uint32_t>(row), static_cast<uint32_t>(begin),
                                           layer, static_cast<uint32_t>(rows)});
      for (int64_t i = begin; i < std::min(begin + 16, count); ++i) {
        const uint32_t byte = words[static_cast<size_t>(i % 4)] >> (i % 16 / 4 * 8) & 0xff;
        out[static_cast<size_t>(i)] = (static_cast<float>(byte) - 128) / 64;
      }
    }
  }
};

// Rows [begin, end) of `dim` numbers, stored by `encode`.
template <class Encode>
void FillRows(ThreadPool& pool, const Source& source, int64_t begin, int64_t end, int64_t dim,
              const PagedRows& rows, const Encode& encode) {
  pool.ParallelFor(end - begin, 64, [&](int64_t first, int64_t last) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t r = begin + first; r < begin + last; ++r) {
      source.Draw(r, row);
      encode(row.data(), rows.row(r));
    }
  });
}

}  // namespace

void FillCache(ThreadPool& pool, const ModelConfig& config, const SequencePages& pages,
               uint64_t seed, CpuKvMemory& memory) {
  const auto encode = [&](const float* row, std::byte* stored) {
    EncodeKvRow(memory.layout().kv_row(), row, stored);
  };
  const auto encode_index = [&](const float* row, std::byte* stored) {
    EncodeIndexRow(memory.layout().index_row(), row, stored);
  };
  for (int64_t l = 0; l < config.layer_count(); ++l) {
    const LayerConfig& layer = config.layers[static_cast<size_t>(l)];
    const auto from = [&](RowKind rows) { return Source{seed, static_cast<uint32_t>(l), rows}; };
    const auto fill_ring = [&](RowKind rows, const CompressorRing& ring, int64_t dim) {
      const int64_t series = layer.attention == AttentionKind::kC4 ? 2 : 1;
      from(rows).Draw(0, {ring.data, static_cast<size_t>(ring.rows * 2 * series * dim)});
    };
    const int64_t window = std::max<int64_t>(0, pages.position + 1 - config.sliding_window);
    FillRows(pool, from(RowKind::kWindow), window, pages.position, config.head_dim,
             memory.WindowRows(pages, l), encode);
    if (layer.attention == AttentionKind::kWindow) continue;
    const int64_t entries = pages.position / layer.compress_rate;
    FillRows(pool, from(RowKind::kEntries), 0, entries, config.head_dim,
             memory.CompressedRows(pages, l), encode);
    fill_ring(RowKind::kAttentionRing, memory.AttentionRing(pages, l), config.head_dim);
    if (layer.attention != AttentionKind::kC4) continue;
    FillRows(pool, from(RowKind::kIndexKeys), 0, entries, config.index_head_dim,
             memory.IndexRows(pages, l), encode_index);
    fill_ring(RowKind::kIndexerRing, memory.IndexerRing(pages, l), config.index_head_dim);
  }
}

}  // namespace halfbyte
