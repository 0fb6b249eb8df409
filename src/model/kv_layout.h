// What the KV cache of a model consists of (server.md §1.4; deepseek-v4.md §3): how its rows are
// stored, what a page holds of each layer, and the bytes of all that. The same on every device.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "kernels/kv_row/kv_row.h"
#include "model/math_mode.h"
#include "paging/kv_pages.h"

namespace halfbyte {

class KvLayout {
 public:
  // Errors: a rate that does not divide a context block; a width that index rows do not take.
  static Result<KvLayout> Create(const ModelConfig& config, KvFormat kv_format,
                                 IndexFormat index_format);
  // In the formats of the math.
  static Result<KvLayout> Create(const ModelConfig& config, MathMode math);

  // Rows of a layer: all have window rows, kWindowPageTokens to a page.
  struct Layer {
    int64_t entries_per_block = 0;  // compressed rows; 0: the layer has none
    bool indexed = false;           // as many index keys, and rings that overlap
    int64_t attention_ring = -1;    // which of rings()
    int64_t indexer_ring = -1;
  };
  // A compressor's ring in a state slot: row p % rows is that of position p.
  struct Ring {
    int64_t offset = 0;  // in floats
    int64_t rate = 0;
    bool overlap = false;    // its last group is what a tail keeps
    int64_t row_floats = 0;  // fp32 kv and scores

    int64_t rows() const { return overlap ? 2 * rate : rate; }
  };
  const KvRow& kv_row() const { return kv_row_; }
  const IndexRow& index_row() const { return index_row_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<Ring>& rings() const { return rings_; }

  // Bytes per unit, over all layers.
  int64_t context_block_bytes() const { return context_block_bytes_; }
  int64_t window_page_bytes() const { return window_page_bytes_; }
  int64_t state_slot_bytes() const { return state_floats_ * int64_t{sizeof(float)}; }
  int64_t tail_bytes() const { return tail_floats_ * int64_t{sizeof(float)}; }
  int64_t BytesOf(const KvPoolSizes& sizes) const;
  // Error: more of something than ids are for.
  static Status CheckSizes(const KvPoolSizes& sizes);

 private:
  KvLayout() = default;
  int64_t AddRing(int64_t rate, bool overlap, int64_t dim);

  KvRow kv_row_;
  IndexRow index_row_;
  std::vector<Layer> layers_;
  std::vector<Ring> rings_;
  int64_t state_floats_ = 0;
  int64_t tail_floats_ = 0;
  int64_t context_block_bytes_ = 0;
  int64_t window_page_bytes_ = 0;
};

}  // namespace halfbyte
