// The attention of one layer (deepseek-v4.md §2.3 - §2.7): projections, window cache, compressor,
// indexer, attention, inverse rotation, grouped output projection.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "kernels/attention/attention.h"
#include "kernels/compressor/compressor.h"
#include "model/projection.h"
#include "model/step.h"
#include "model/weight_loader.h"

namespace halfbyte {

class AttentionBlock {
 public:
  static Result<AttentionBlock> Load(const WeightLoader& loader, int64_t layer);

  // x: normed hidden [step.tokens, D]. Stores the batch's rows in the cache. Writes out
  // [queries.tokens, D]: what those of its tokens see that `queries` has (all, or some at the end
  // of sequences).
  void Forward(const Step& step, const Step& queries, MatrixView<const float> x,
               MatrixView<float> out) const;

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

  struct CompressorInput {  // [tokens, channels]
    MatrixView<float> kv;
    MatrixView<float> score;
  };
  // The products of x, rows of all tokens.
  struct Projected {
    MatrixView<float> window;         // [tokens, head_dim]
    MatrixView<float> low_rank;       // [tokens, Rq]
    CompressorInput entries;          // with compressor_
    CompressorInput index;            // with indexer_
    MatrixView<float> index_weights;  // [tokens, index heads], if entries are to be selected
  };

  AttentionBlock() = default;
  static Result<CompressorWeights> LoadCompressor(const WeightLoader& loader, int64_t layer,
                                                  bool of_indexer);
  Compressor MakeCompressor(const CompressorWeights& weights) const;
  Projected Project(const Step& step, MatrixView<const float> x, bool selects) const;
  void StoreRows(const Step& step, const Projected& projected) const;
  // Norms low_rank as well.
  void NormAndStoreWindow(const Step& step, const Projected& projected) const;
  template <class Row, class Fill>
  void StoreCompressed(const Step& step, const CompressorWeights& weights,
                       const CompressorInput& input, const Row& row, const Fill& fill) const;
  void Select(const Step& step, MatrixView<float> q, MatrixView<float> weights,
              MatrixView<int32_t> indices, int32_t* counts) const;
  void Attend(const Step& step, const EntrySelection& selection, MatrixView<float> q,
              MatrixView<float> attended) const;

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
