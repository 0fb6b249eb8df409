// The attention of one layer (deepseek-v4.md §2.3 - §2.7): projections, window cache, compressor,
// indexer, attention, inverse rotation, grouped output projection.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "kernels/compressor/compressor.h"
#include "model/projection.h"
#include "model/step.h"
#include "model/weight_loader.h"

namespace halfbyte {

class AttentionBlock {
 public:
  static Result<AttentionBlock> Load(const WeightLoader& loader, int64_t layer);

  // x: normed hidden [tokens, D]. Writes out [tokens, D]. Stores the batch's rows in the cache.
  void Forward(const Step& step, MatrixView<const float> x, MatrixView<float> out) const;

 private:
  struct CompressorWeights {
    Projection kv;    // [channels, D]
    Projection gate;  // [channels, D]
    std::vector<float> position_bias;
    std::vector<float> norm;
    int64_t dim = 0;
  };
  struct IndexerWeights {
    Projection query;    // [heads * dim, Rq]
    Projection weights;  // [heads, D]
    CompressorWeights compressor;
  };

  AttentionBlock() = default;
  static Result<CompressorWeights> LoadCompressor(const WeightLoader& loader, int64_t layer,
                                                  bool of_indexer);
  Compressor MakeCompressor(const CompressorWeights& weights) const;
  MatrixView<float> Queries(const Step& step, MatrixView<const float> low_rank) const;
  void StoreWindow(const Step& step, MatrixView<const float> x) const;
  template <class Row, class Fill>
  void StoreCompressed(const Step& step, MatrixView<const float> x,
                       const CompressorWeights& weights, const Row& row, const Fill& fill) const;
  void Select(const Step& step, MatrixView<const float> x, MatrixView<const float> low_rank,
              MatrixView<int32_t> indices, int32_t* counts) const;

  const ModelConfig* config_ = nullptr;
  int64_t layer_ = 0;
  LayerConfig kind_;
  Projection query_a_;  // [Rq, D]
  Projection query_b_;  // [H * head_dim, Rq]
  Projection kv_;       // [head_dim, D]
  Projection out_a_;    // [G * Ro, H * head_dim / G]
  Projection out_b_;    // [D, G * Ro]
  std::vector<float> query_norm_;
  std::vector<float> kv_norm_;
  std::vector<float> sinks_;
  std::vector<double> rope_frequencies_;
  std::optional<CompressorWeights> compressor_;
  std::optional<IndexerWeights> indexer_;
};

}  // namespace halfbyte
