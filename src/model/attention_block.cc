#include "model/attention_block.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/indexer/indexer.h"
#include "kernels/rms_norm/rms_norm.h"
#include "model/rope_config.h"

namespace halfbyte {
namespace {

MatrixView<float> RoundedProduct(const Step& step, MatrixView<const float> x, const Projection& w) {
  const MatrixView<float> y = step.arena->Matrix(x.rows, w.rows());
  w.Forward(step, x, y);
  RoundRows(*step.context, step.rounding, y);
  return y;
}

// The spans of a step joined with each sequence's rows: AttentionSequence, CompressorSequence, ...
template <class KernelSequence, class Fill>
std::vector<KernelSequence> JoinSequences(const Step& step, const Fill& fill) {
  std::vector<KernelSequence> joined(step.sequences.size());
  for (size_t i = 0; i < joined.size(); ++i) {
    static_cast<TokenSpan&>(joined[i]) = step.spans[i];
    fill(*step.sequences[i], joined[i]);
  }
  return joined;
}

// Of any query of the step.
int64_t MostVisibleEntries(const Step& step, int64_t rate) {
  int64_t most = 0;
  for (const TokenSpan& span : step.spans) {
    most = std::max(most, VisibleEntries(span.position + span.count - 1, rate));
  }
  return most;
}

}  // namespace

Result<AttentionBlock> AttentionBlock::Load(const WeightLoader& loader, int64_t layer) {
  const ModelConfig& config = loader.config();
  const int64_t hidden = config.hidden_size;
  const int64_t rank = config.q_lora_rank;
  const int64_t heads_dim = config.attention_heads * config.head_dim;
  const auto key = [layer](Module module) { return ModuleKey::Layer(layer, module); };
  AttentionBlock block;
  block.config_ = &config;
  block.layer_ = layer;
  block.kind_ = config.layers[static_cast<size_t>(layer)];
  block.rope_frequencies_ = FrequenciesOf(config, block.kind_.attention);
  HB_ASSIGN_OR_RETURN(block.query_a_, Projection::Load(loader, key(Module::kQA), rank, hidden));
  HB_ASSIGN_OR_RETURN(block.query_norm_, loader.Vector(key(Module::kQNorm), rank));
  HB_ASSIGN_OR_RETURN(block.query_b_, Projection::Load(loader, key(Module::kQB), heads_dim, rank));
  HB_ASSIGN_OR_RETURN(block.kv_,
                      Projection::Load(loader, key(Module::kKv), config.head_dim, hidden));
  HB_ASSIGN_OR_RETURN(block.kv_norm_, loader.Vector(key(Module::kKvNorm), config.head_dim));
  HB_ASSIGN_OR_RETURN(block.sinks_,
                      loader.Vector(key(Module::kAttentionSink), config.attention_heads));
  HB_ASSIGN_OR_RETURN(
      block.out_a_, Projection::Load(loader, key(Module::kOA), config.o_groups * config.o_lora_rank,
                                     heads_dim / config.o_groups, config.o_groups));
  HB_ASSIGN_OR_RETURN(block.out_b_, Projection::Load(loader, key(Module::kOB), hidden,
                                                     config.o_groups * config.o_lora_rank));
  if (block.kind_.attention != AttentionKind::kWindow) {
    HB_ASSIGN_OR_RETURN(block.compressor_, LoadCompressor(loader, layer, /*of_indexer=*/false));
  }
  if (block.kind_.attention == AttentionKind::kC4) {
    IndexerWeights indexer;
    HB_ASSIGN_OR_RETURN(indexer.query,
                        Projection::Load(loader, key(Module::kIndexerQB),
                                         config.index_heads * config.index_head_dim, rank));
    HB_ASSIGN_OR_RETURN(indexer.weights, Projection::Load(loader, key(Module::kIndexerWeights),
                                                          config.index_heads, hidden));
    HB_ASSIGN_OR_RETURN(indexer.compressor, LoadCompressor(loader, layer, /*of_indexer=*/true));
    block.indexer_ = std::move(indexer);
  }
  return block;
}

Result<AttentionBlock::CompressorWeights> AttentionBlock::LoadCompressor(const WeightLoader& loader,
                                                                         int64_t layer,
                                                                         bool of_indexer) {
  const ModelConfig& config = loader.config();
  const LayerConfig& kind = config.layers[static_cast<size_t>(layer)];
  const auto key = [&](Module of_attention, Module of_index) {
    return ModuleKey::Layer(layer, of_indexer ? of_index : of_attention);
  };
  CompressorWeights weights;
  weights.dim = of_indexer ? config.index_head_dim : config.head_dim;
  const int64_t channels = (kind.attention == AttentionKind::kC4 ? 2 : 1) * weights.dim;
  HB_ASSIGN_OR_RETURN(
      weights.kv, Projection::Load(loader, key(Module::kCompressorKv, Module::kIndexerKv), channels,
                                   config.hidden_size));
  HB_ASSIGN_OR_RETURN(weights.gate,
                      Projection::Load(loader, key(Module::kCompressorGate, Module::kIndexerGate),
                                       channels, config.hidden_size));
  HB_ASSIGN_OR_RETURN(weights.position_bias,
                      loader.Vector(key(Module::kCompressorApe, Module::kIndexerApe),
                                    kind.compress_rate * channels));
  HB_ASSIGN_OR_RETURN(
      weights.norm, loader.Vector(key(Module::kCompressorNorm, Module::kIndexerNorm), weights.dim));
  return weights;
}

Compressor AttentionBlock::MakeCompressor(const CompressorWeights& weights) const {
  return {.rate = kind_.compress_rate,
          .overlap = kind_.attention == AttentionKind::kC4,
          .dim = weights.dim,
          .position_bias = weights.position_bias.data(),
          .norm = weights.norm.data(),
          .norm_eps = static_cast<float>(config_->rms_norm_eps),
          .rope_frequencies = rope_frequencies_};
}

void AttentionBlock::Forward(const Step& step, MatrixView<const float> x,
                             MatrixView<float> out) const {
  const Arena::Scope scope(*step.arena);
  const Context& context = *step.context;
  const RopeAngles& angles = step.angles(kind_.attention);

  // Rows first: a query sees its own window row and the entry its own token completes.
  StoreWindow(step, x);
  if (compressor_) {
    StoreCompressed(step, x, *compressor_, step.cache->kv_row(),
                    [&](const SequencePages& pages, CompressorSequence& s) {
                      s.ring = step.cache->AttentionRing(pages, layer_);
                      s.entries = step.cache->CompressedRows(pages, layer_);
                    });
  }
  if (indexer_) {
    StoreCompressed(step, x, indexer_->compressor, step.cache->index_row(),
                    [&](const SequencePages& pages, CompressorSequence& s) {
                      s.ring = step.cache->IndexerRing(pages, layer_);
                      s.entries = step.cache->IndexRows(pages, layer_);
                    });
  }

  const MatrixView<float> low_rank = RoundedProduct(step, x, query_a_);
  RmsNorm(context, low_rank, query_norm_.data(), static_cast<float>(config_->rms_norm_eps),
          step.rounding, low_rank);
  const MatrixView<float> q = Queries(step, low_rank);

  EntrySelection selection;  // all, unless some query sees more than it may choose
  if (indexer_ && MostVisibleEntries(step, kind_.compress_rate) > config_->index_topk) {
    const MatrixView<int32_t> indices =
        step.arena->Matrix<int32_t>(step.tokens, config_->index_topk);
    int32_t* counts = step.arena->Take<int32_t>(step.tokens);
    Select(step, x, low_rank, indices, counts);
    selection = {indices.data, counts, indices.columns};
  }

  const AttentionShape shape{.heads = config_->attention_heads,
                             .window = config_->sliding_window,
                             .rate = kind_.compress_rate,
                             .row = step.cache->kv_row(),
                             .sinks = sinks_.data()};
  const MatrixView<float> attended = step.arena->Matrix(step.tokens, q.columns);
  Attention(context, shape,
            JoinSequences<AttentionSequence>(step,
                                             [&](const SequencePages& pages, AttentionSequence& s) {
                                               s.window = step.cache->WindowRows(pages, layer_);
                                               s.compressed =
                                                   step.cache->CompressedRows(pages, layer_);
                                             }),
            selection, q, step.rounding, attended);
  // Values carry the rotation of their own positions; turning back by the query's leaves the
  // relative one.
  ApplyRope(context, angles, config_->attention_heads, /*inverse=*/true, step.rounding, attended);

  const MatrixView<float> grouped = step.arena->Matrix(step.tokens, out_a_.rows());
  out_a_.Forward(step, attended, grouped);
  RoundRows(context, step.rounding, grouped);
  out_b_.Forward(step, grouped, out);
  RoundRows(context, step.rounding, out);
}

MatrixView<float> AttentionBlock::Queries(const Step& step,
                                          MatrixView<const float> low_rank) const {
  const MatrixView<float> q = RoundedProduct(step, low_rank, query_b_);
  const MatrixView<float> heads{q.data, q.rows * config_->attention_heads, config_->head_dim};
  RmsNorm(*step.context, heads, /*weight=*/nullptr, static_cast<float>(config_->rms_norm_eps),
          step.rounding, heads);
  ApplyRope(*step.context, step.angles(kind_.attention), config_->attention_heads,
            /*inverse=*/false, step.rounding, q);
  return q;
}

void AttentionBlock::StoreWindow(const Step& step, MatrixView<const float> x) const {
  const Arena::Scope scope(*step.arena);
  const MatrixView<float> rows = RoundedProduct(step, x, kv_);
  RmsNorm(*step.context, rows, kv_norm_.data(), static_cast<float>(config_->rms_norm_eps),
          step.rounding, rows);
  ApplyRope(*step.context, step.angles(kind_.attention), /*heads=*/1, /*inverse=*/false,
            step.rounding, rows);
  StoreKvRows(*step.context, step.cache->kv_row(),
              JoinSequences<WindowSequence>(step,
                                            [&](const SequencePages& pages, WindowSequence& s) {
                                              s.rows = step.cache->WindowRows(pages, layer_);
                                            }),
              rows);
}

template <class Row, class Fill>
void AttentionBlock::StoreCompressed(const Step& step, MatrixView<const float> x,
                                     const CompressorWeights& weights, const Row& row,
                                     const Fill& fill) const {
  const Arena::Scope scope(*step.arena);
  const MatrixView<float> kv = step.arena->Matrix(step.tokens, weights.kv.rows());
  const MatrixView<float> score = step.arena->Matrix(step.tokens, weights.gate.rows());
  weights.kv.Forward(step, x, kv);
  weights.gate.Forward(step, x, score);
  Compress(*step.context, MakeCompressor(weights), JoinSequences<CompressorSequence>(step, fill),
           kv, score, step.rounding, row);
}

void AttentionBlock::Select(const Step& step, MatrixView<const float> x,
                            MatrixView<const float> low_rank, MatrixView<int32_t> indices,
                            int32_t* counts) const {
  const Arena::Scope scope(*step.arena);
  const MatrixView<float> q = RoundedProduct(step, low_rank, indexer_->query);
  ApplyRope(*step.context, step.angles(kind_.attention), config_->index_heads, /*inverse=*/false,
            step.rounding, q);
  RoundIndexQueries(*step.context, step.cache->index_row(), q);
  const MatrixView<float> weights = RoundedProduct(step, x, indexer_->weights);
  const double factor =
      1.0 / std::sqrt(static_cast<double>(config_->index_head_dim * config_->index_heads));
  ScaleRows(*step.context, static_cast<float>(factor), Rounding::kNone, weights);
  SelectEntries(*step.context,
                {.heads = config_->index_heads,
                 .rate = kind_.compress_rate,
                 .top_k = config_->index_topk,
                 .row = step.cache->index_row(),
                 .reference_entries = step.reference_tokens / kind_.compress_rate},
                JoinSequences<IndexerSequence>(step,
                                               [&](const SequencePages& pages, IndexerSequence& s) {
                                                 s.keys = step.cache->IndexRows(pages, layer_);
                                               }),
                q, weights, indices, counts);
}

}  // namespace halfbyte
