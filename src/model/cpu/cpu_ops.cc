#include "model/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/packed_linear/packed_linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "model/program/deepseek_v4.h"
#include "model/program/recorded_program.h"

namespace halfbyte {

int64_t StepArenaBytes(const ModelConfig& c, int64_t tokens) {
  // The largest step: everything is wanted, and at the end of the longest context.
  const StepShape step{.tokens = {tokens, tokens},
                       .context = {c.max_position_embeddings, c.max_position_embeddings}};
  RecordedProgram program(step);
  HB_CHECK(RunDeepseekV4(c, {}, step, program).has_value(), "a recording fails");
  const int64_t n = c.hc_streams;
  const int64_t boundary = (2 + n) * n + n * n + n;
  int64_t operand = 0;  // of the widest product
  for (const int64_t columns :
       {c.hidden_size, c.q_lora_rank, c.attention_heads * c.head_dim, c.o_groups * c.o_lora_rank}) {
    operand = std::max(operand, MaxOperandRowBytes(columns));
  }
  const int64_t inside = std::max(operand, c.hidden_size * int64_t{sizeof(float)});
  // Every piece begins at a multiple of 64 bytes; there are some thirty.
  return program.most_live_bytes() + tokens * boundary * int64_t{sizeof(float)} + tokens * inside +
         32 * 64;
}

template <class T>
MatrixView<T> CpuOps::View(Rows rows) const {
  return {static_cast<T*>(data_[static_cast<size_t>(rows.name)]), tables(rows).tokens(),
          rows.columns};
}

void CpuOps::Begin(const StepTables& tables, const CpuKvMemory& cache, MatrixView<float> logits) {
  arena_.Reset();
  tables_ = &tables;
  cache_ = &cache;
  logits_ = logits;
  const int64_t n = config_.hc_streams;
  const int64_t tokens = tables.of(TokenSet::kAll).tokens();
  post_ = arena_.Matrix(tokens, n);
  comb_ = arena_.Matrix(tokens, n * n);
  mix_ = arena_.Matrix(tokens, (2 + n) * n);
}

Rows CpuOps::Take(RowsName name, TokenSet tokens, int64_t columns) {
  const Rows rows{name, tokens, columns};
  data_[static_cast<size_t>(name)] = arena_.Take<float>(tables(rows).tokens() * columns);
  return rows;
}

// Runs body(first, count) on ranges of at most kMostTokens, side by side: a thread takes its
// tokens through several kernels while their rows are in its cache, and from one such loop to the
// next mostly the same tokens. (The kernels' own loops then run in their caller. With fewer
// tokens than threads there is one range, and they share out what they can.)
template <class Body>
void CpuOps::ForTokens(int64_t tokens, const Body& body) const {
  constexpr int64_t kMostTokens = 8;
  const int64_t threads = context_.pool().threads();
  const int64_t each = std::min((tokens + threads - 1) / threads, kMostTokens);
  context_.pool().ParallelFor(tokens, tokens < threads ? tokens : each,
                              [&](int64_t begin, int64_t end) {
                                for (; begin < end; begin += kMostTokens) {
                                  body(begin, std::min(kMostTokens, end - begin));
                                }
                              });
}

// The spans of a step joined with where each sequence's rows of one layer lie.
template <class Sequence, class Fill>
std::span<const Sequence> CpuOps::Join(const TokenTables& tables, std::vector<Sequence>& joined,
                                       const Fill& fill) const {
  joined.resize(tables.sequences.size());
  for (size_t i = 0; i < joined.size(); ++i) {
    static_cast<TokenSpan&>(joined[i]) = tables.spans[i];
    fill(*tables.sequences[i], joined[i]);
  }
  return joined;
}

void CpuOps::Embed(const ModuleKey& table, Rows streams, Rounding rounding) {
  EmbedTokens(context_, weights_.in_place(table), tables(streams).token_ids, config_.hc_streams,
              rounding, View(streams));
}

void CpuOps::CrossBoundary(const Boundary& boundary) {
  const MatrixView<float> streams = View(boundary.streams);
  MatrixView<float> y, x;
  HyperConnection entered;
  const float* norm = nullptr;
  if (boundary.left) y = View(boundary.y);
  if (boundary.entered) {
    x = View(boundary.x);
    entered = weights_.hyper_connection(HyperConnectionOf(*boundary.entered));
    norm = weights_.vector(NormOf(*boundary.entered));
  }
  // The next input comes from the streams while they are in the cache.
  ForTokens(streams.rows, [&](int64_t first, int64_t count) {
    const auto of = [&](MatrixView<float> all) { return all.Rows(first, count); };
    if (boundary.left) {
      HcPost(context_, of(y), of(post_), of(comb_), boundary.rounding, of(streams));
    }
    if (!boundary.entered) return;
    HcPre(context_, entered, of(streams), boundary.rounding, of(mix_), of(x), of(post_), of(comb_));
    RmsNorm(context_, of(x), norm, norm_eps(), boundary.rounding, of(x));
  });
}

void CpuOps::Project(Rows x, std::span<const Product> products) {
  std::vector<Projection::Output> outputs;
  for (const Product& product : products) {
    outputs.push_back({&weights_.matrix(product.weight), View(product.y), product.rounding});
  }
  Projection::ForwardAll(context_, arena_, View(x), outputs);
}

void CpuOps::Store(const CacheRows& rows) {
  StoreWindow(rows);
  const int64_t layer = rows.attention.layer;
  if (rows.entries) {
    StoreCompressed(rows.attention, *rows.entries, rows.rounding, cache_->layout().kv_row(),
                    [&](const SequencePages& pages, CompressorSequence& s) {
                      s.ring = cache_->AttentionRing(pages, layer);
                      s.entries = cache_->CompressedRows(pages, layer);
                    });
  }
  if (rows.index) {
    StoreCompressed(rows.attention, *rows.index, rows.rounding, cache_->layout().index_row(),
                    [&](const SequencePages& pages, CompressorSequence& s) {
                      s.ring = cache_->IndexerRing(pages, layer);
                      s.entries = cache_->IndexRows(pages, layer);
                    });
  }
}

void CpuOps::StoreWindow(const CacheRows& rows) {
  const auto sequences = Join(tables(rows.window), window_sequences_,
                              [&](const SequencePages& pages, WindowSequence& s) {
                                s.rows = cache_->WindowRows(pages, rows.attention.layer);
                              });
  const RopeAngles& angles = tables(rows.window).angles(rows.attention.kind);
  const float* low_rank_norm = weights_.vector(rows.low_rank_norm);
  const float* window_norm = weights_.vector(rows.window_norm);
  const MatrixView<float> all_low_rank = View(rows.low_rank), all_windows = View(rows.window);
  ForTokens(all_windows.rows, [&](int64_t first, int64_t count) {
    const MatrixView<float> low_rank = all_low_rank.Rows(first, count);
    RmsNorm(context_, low_rank, low_rank_norm, norm_eps(), rows.rounding, low_rank);
    const MatrixView<float> window = all_windows.Rows(first, count);
    RmsNorm(context_, window, window_norm, norm_eps(), rows.rounding, window);
    ApplyRope(context_, angles, /*heads=*/1, /*inverse=*/false, rows.rounding, window, first);
    StoreKvRows(context_, cache_->layout().kv_row(),
                Within<WindowSequence>(sequences, first, count), all_windows);
  });
}

template <class Row, class Fill>
void CpuOps::StoreCompressed(const AttentionLayer& attention, const Compression& compression,
                             Rounding rounding, const Row& row, const Fill& fill) {
  const auto sequences = Join(tables(compression.kv), compressor_sequences_,
                              [&](const SequencePages& pages, CompressorSequence& s) {
                                s.first_entry = pages.replay_end / attention.rate;
                                fill(pages, s);
                              });
  const Compressor compressor{.rate = attention.rate,
                              .overlap = compression.overlap,
                              .dim = compression.dim,
                              .position_bias = weights_.vector(compression.position_bias),
                              .norm = weights_.vector(compression.norm),
                              .norm_eps = norm_eps(),
                              .rope_frequencies = rope_.of(attention.kind)};
  Compress(context_, compressor, sequences, View(compression.kv), View(compression.score), rounding,
           row);
}

void CpuOps::Select(const Selection& selection) {
  const TokenTables& step = tables(selection.queries);
  const MatrixView<float> queries = View(selection.queries), weights = View(selection.weights);
  ApplyRope(context_, step.angles(selection.attention.kind), config_.index_heads,
            /*inverse=*/false, selection.rounding, queries);
  RoundIndexQueries(context_, cache_->layout().index_row(), queries);
  const double factor =
      1.0 / std::sqrt(static_cast<double>(config_.index_head_dim * config_.index_heads));
  ScaleRows(context_, static_cast<float>(factor), Rounding::kNone, weights);
  const auto sequences =
      Join(step, indexer_sequences_, [&](const SequencePages& pages, IndexerSequence& s) {
        s.keys = cache_->IndexRows(pages, selection.attention.layer);
      });
  SelectEntries(context_,
                {.heads = config_.index_heads,
                 .rate = selection.attention.rate,
                 .top_k = config_.index_topk,
                 .row = cache_->layout().index_row(),
                 .reference_entries = reference_tokens_ / selection.attention.rate},
                sequences, queries, weights, View<int32_t>(selection.selected),
                View<int32_t>(selection.count).data);
}

void CpuOps::Attend(const Attention& attention) {
  const TokenTables& step = tables(attention.queries);
  const int64_t layer = attention.attention.layer;
  const int64_t heads = config_.attention_heads;
  const RopeAngles& angles = step.angles(attention.attention.kind);
  const AttentionShape shape{.heads = heads,
                             .window = config_.sliding_window,
                             .rate = attention.attention.rate,
                             .row = cache_->layout().kv_row(),
                             .sinks = weights_.vector(attention.sinks)};
  EntrySelection selection;
  if (attention.selection) {
    const MatrixView<int32_t> selected = View<int32_t>(attention.selection->selected);
    selection = {selected.data, View<int32_t>(attention.selection->count).data, selected.columns};
  }
  const auto sequences =
      Join(step, attention_sequences_, [&](const SequencePages& pages, AttentionSequence& s) {
        s.window = cache_->WindowRows(pages, layer);
        s.window_start = pages.replay_start;
        s.compressed = cache_->CompressedRows(pages, layer);
      });
  const MatrixView<float> q = View(attention.queries), attended = View(attention.attended);
  ForTokens(q.rows, [&](int64_t first, int64_t count) {
    const MatrixView<float> of_heads{q.row(first), count * heads, config_.head_dim};
    RmsNorm(context_, of_heads, /*weight=*/nullptr, norm_eps(), attention.rounding, of_heads);
    ApplyRope(context_, angles, heads, /*inverse=*/false, attention.rounding, q.Rows(first, count),
              first);
    halfbyte::Attention(context_, shape, Within<AttentionSequence>(sequences, first, count),
                        selection, q, attention.rounding, attended);
    // Values carry the rotation of their own positions; turning back by the query's leaves the
    // relative one.
    ApplyRope(context_, angles, heads, /*inverse=*/true, attention.rounding,
              attended.Rows(first, count), first);
  });
}

void CpuOps::Route(const Choice& choice) {
  weights_.moe(choice.layer)
      .routing()
      .Route(context_, View(choice.logits), tables(choice.logits).token_ids,
             {View<int32_t>(choice.experts), View(choice.weights)});
}

Status CpuOps::RunExperts(const Experts& experts) {
  const Routing routing{View<int32_t>(experts.choice.experts), View(experts.choice.weights)};
  return weights_.moe(experts.layer)
      .Run(context_, View(experts.x), routing, experts.rounding, {arena_, workspace_, exchange_},
           View(experts.y));
}

Rows CpuOps::KeepWanted(Rows all) {
  KeepWanted(View(all));
  if (all.name == RowsName::kStreams) {
    KeepWanted(post_);
    KeepWanted(comb_);
  }
  return {all.name, TokenSet::kWanted, all.columns};
}

// Moves the rows of the wanted tokens to the front.
void CpuOps::KeepWanted(MatrixView<float> all) const {
  const TokenTables& wanted = tables_->of(TokenSet::kWanted);
  if (all.rows == wanted.tokens()) return;
  for (int64_t t = 0; t < wanted.tokens(); ++t) {
    std::copy_n(all.row(wanted.rows[static_cast<size_t>(t)]), all.columns, all.row(t));
  }
}

void CpuOps::MergeStreams(Rows streams, Rows x, Rounding rounding) {
  const MatrixView<float> merged = View(x);
  const MatrixView<float> mix{mix_.data, merged.rows, config_.hc_streams};
  HcHead(context_, weights_.hyper_connection(HeadHyperConnection()), View(streams), rounding, mix,
         merged);
  RmsNorm(context_, merged, weights_.vector(ModuleKey::Global(Module::kNorm)), norm_eps(), rounding,
          merged);
}

void CpuOps::Logits(Rows x, const ModuleKey& head) {
  const Projection::Output output{&weights_.matrix(head), logits_};
  Projection::ForwardAll(context_, arena_, View(x), {&output, 1});
}

std::vector<float> CpuOps::Read(Rows rows) const {
  const bool integers = rows.name == RowsName::kChoices || rows.name == RowsName::kSelected ||
                        rows.name == RowsName::kSelectedCount;
  const MatrixView<float> view = View(rows);
  const int64_t count = view.rows * view.columns;
  if (!integers) return {view.data, view.data + count};
  const int32_t* numbers = View<int32_t>(rows).data;
  return {numbers, numbers + count};
}

}  // namespace halfbyte
