#include "model/attention_block.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/indexer/indexer.h"
#include "kernels/rms_norm/rms_norm.h"
#include "model/rope_config.h"

namespace halfbyte {
namespace {

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

void AttentionBlock::Forward(const Step& step, const Step& queries, MatrixView<const float> x,
                             MatrixView<float> out) const {
  const Arena::Scope scope(*step.arena);
  Arena& arena = *step.arena;

  // Where no query sees more than it may choose, all are chosen and nothing is scored.
  const bool selects =
      indexer_ && MostVisibleEntries(queries, kind_.compress_rate) > config_->index_topk;
  const Projected projected = Project(step, x, selects);
  // Rows first: a query sees its own window row and the entry its own token completes.
  StoreRows(step, projected);
  if (queries.tokens == 0) return;

  const MatrixView<float> low_rank = queries.Keep(projected.low_rank);
  const MatrixView<float> q = arena.Matrix(queries.tokens, query_b_.rows());
  std::vector<Projection::Output> outputs{{&query_b_, q, step.rounding}};
  MatrixView<float> index_q;
  if (selects) {
    index_q = arena.Matrix(queries.tokens, indexer_->query.rows());
    outputs.push_back({&indexer_->query, index_q, step.rounding});
  }
  Projection::ForwardAll(queries, low_rank, outputs);

  EntrySelection selection;
  if (selects) {
    const MatrixView<int32_t> indices = arena.Matrix<int32_t>(queries.tokens, config_->index_topk);
    int32_t* counts = arena.Take<int32_t>(queries.tokens);
    Select(queries, index_q, queries.Keep(projected.index_weights), indices, counts);
    selection = {indices.data, counts, indices.columns};
  }

  const MatrixView<float> attended = arena.Matrix(queries.tokens, q.columns);
  Attend(queries, selection, q, attended);
  const MatrixView<float> grouped = arena.Matrix(queries.tokens, out_a_.rows());
  out_a_.Forward(queries, attended, grouped, step.rounding);
  out_b_.Forward(queries, grouped, out, step.rounding);
}

AttentionBlock::Projected AttentionBlock::Project(const Step& step, MatrixView<const float> x,
                                                  bool selects) const {
  std::vector<Projection::Output> outputs;
  const auto add = [&](const Projection& w, Rounding rounding) {
    outputs.push_back({&w, step.arena->Matrix(step.tokens, w.rows()), rounding});
    return outputs.back().y;
  };
  const auto add_compressor = [&](const CompressorWeights& weights) -> CompressorInput {
    return {add(weights.kv, Rounding::kNone), add(weights.gate, Rounding::kNone)};
  };
  Projected projected;
  projected.window = add(kv_, step.rounding);
  projected.low_rank = add(query_a_, step.rounding);
  if (compressor_) projected.entries = add_compressor(*compressor_);
  if (indexer_) projected.index = add_compressor(indexer_->compressor);
  if (selects) projected.index_weights = add(indexer_->weights, step.rounding);
  Projection::ForwardAll(step, x, outputs);
  return projected;
}

void AttentionBlock::StoreRows(const Step& step, const Projected& projected) const {
  NormAndStoreWindow(step, projected);
  if (compressor_) {
    StoreCompressed(step, *compressor_, projected.entries, step.cache->kv_row(),
                    [&](const SequencePages& pages, CompressorSequence& s) {
                      s.ring = step.cache->AttentionRing(pages, layer_);
                      s.entries = step.cache->CompressedRows(pages, layer_);
                    });
  }
  if (indexer_) {
    StoreCompressed(step, indexer_->compressor, projected.index, step.cache->index_row(),
                    [&](const SequencePages& pages, CompressorSequence& s) {
                      s.ring = step.cache->IndexerRing(pages, layer_);
                      s.entries = step.cache->IndexRows(pages, layer_);
                    });
  }
}

void AttentionBlock::NormAndStoreWindow(const Step& step, const Projected& projected) const {
  const auto norm = [&](MatrixView<float> rows, const std::vector<float>& weight) {
    RmsNorm(*step.context, rows, weight.data(), static_cast<float>(config_->rms_norm_eps),
            step.rounding, rows);
  };
  const auto sequences =
      JoinSequences<WindowSequence>(step, [&](const SequencePages& pages, WindowSequence& s) {
        s.rows = step.cache->WindowRows(pages, layer_);
      });
  step.ForTokens([&](int64_t first, int64_t count) {
    norm(projected.low_rank.Rows(first, count), query_norm_);
    const MatrixView<float> rows = projected.window.Rows(first, count);
    norm(rows, kv_norm_);
    ApplyRope(*step.context, step.angles(kind_.attention), /*heads=*/1, /*inverse=*/false,
              step.rounding, rows, first);
    StoreKvRows(*step.context, step.cache->kv_row(),
                Within<WindowSequence>(sequences, first, count), projected.window);
  });
}

template <class Row, class Fill>
void AttentionBlock::StoreCompressed(const Step& step, const CompressorWeights& weights,
                                     const CompressorInput& input, const Row& row,
                                     const Fill& fill) const {
  const auto sequences = JoinSequences<CompressorSequence>(
      step, [&](const SequencePages& pages, CompressorSequence& s) {
        s.first_entry = pages.replay_end / kind_.compress_rate;
        fill(pages, s);
      });
  Compress(*step.context, MakeCompressor(weights), sequences, input.kv, input.score, step.rounding,
           row);
}

void AttentionBlock::Select(const Step& step, MatrixView<float> q, MatrixView<float> weights,
                            MatrixView<int32_t> indices, int32_t* counts) const {
  ApplyRope(*step.context, step.angles(kind_.attention), config_->index_heads, /*inverse=*/false,
            step.rounding, q);
  RoundIndexQueries(*step.context, step.cache->index_row(), q);
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

void AttentionBlock::Attend(const Step& step, const EntrySelection& selection, MatrixView<float> q,
                            MatrixView<float> attended) const {
  const Context& context = *step.context;
  const int64_t heads = config_->attention_heads;
  const RopeAngles& angles = step.angles(kind_.attention);
  const AttentionShape shape{.heads = heads,
                             .window = config_->sliding_window,
                             .rate = kind_.compress_rate,
                             .row = step.cache->kv_row(),
                             .sinks = sinks_.data()};
  const auto sequences =
      JoinSequences<AttentionSequence>(step, [&](const SequencePages& pages, AttentionSequence& s) {
        s.window = step.cache->WindowRows(pages, layer_);
        s.window_start = pages.replay_start;
        s.compressed = step.cache->CompressedRows(pages, layer_);
      });
  step.ForTokens([&](int64_t first, int64_t count) {
    const MatrixView<float> of_heads{q.row(first), count * heads, config_->head_dim};
    RmsNorm(context, of_heads, /*weight=*/nullptr, static_cast<float>(config_->rms_norm_eps),
            step.rounding, of_heads);
    ApplyRope(context, angles, heads, /*inverse=*/false, step.rounding, q.Rows(first, count),
              first);
    Attention(context, shape, Within<AttentionSequence>(sequences, first, count), selection, q,
              step.rounding, attended);
    // Values carry the rotation of their own positions; turning back by the query's leaves the
    // relative one.
    ApplyRope(context, angles, heads, /*inverse=*/true, step.rounding, attended.Rows(first, count),
              first);
  });
}

}  // namespace halfbyte
