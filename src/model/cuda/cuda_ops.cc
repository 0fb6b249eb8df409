#include "model/cuda/cuda_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/hyper_connection/hyper_connection_cuda.h"
#include "kernels/indexer/indexer_cuda.h"
#include "kernels/kv_row/kv_row_cuda.h"
#include "kernels/route/cuda_router.h"
#include "kernels/swiglu/swiglu_cuda.h"
#include "tensor/scale_layout.h"

namespace halfbyte {

void CudaOps::Begin(const Step& step) {
  step_ = &step;
  status_ = {};
  used_ = 0;
  scopes_.clear();
  const int64_t n = config_.hc_streams;
  const int64_t tokens = step.tables.of(TokenSet::kAll).count;
  post_ = TakeElements<float>(tokens * n);
  comb_ = TakeElements<float>(tokens * n * n);
}

std::byte* CudaOps::TakeBytes(int64_t bytes) {
  std::byte* const taken = memory_.arena() + used_;
  used_ += RoundUp(bytes, kCudaArenaAlignment);
  HB_CHECK(used_ <= memory_.sizes().arena, "{} bytes of an arena of {}", used_,
           memory_.sizes().arena);
  return taken;
}

Rows CudaOps::Take(RowsName name, TokenSet set, int64_t columns) {
  const Rows rows{name, set, columns};
  data_[static_cast<size_t>(name)] =
      TakeBytes(tokens(rows).count * columns * CudaElementBytes(name));
  return rows;
}

template <class Launch>
void CudaOps::Do(const char* what, const Launch& launch) {
  if (!status_) return;
  status_ = CudaStatus(launch(), what);
  if (status_ && step_->wait) status_ = CudaStatus(cudaStreamSynchronize(stream_), what);
}

void CudaOps::Embed(const ModuleKey& table, Rows streams, Rounding) {
  Do("embedding", [&] {
    return LaunchEmbed({.table = weights_.embedding(table),
                        .vocab = config_.vocab_size,
                        .columns = config_.hidden_size,
                        .copies = config_.hc_streams,
                        .tokens = tokens(streams),
                        .out = Data<Bf16>(streams)},
                       stream_);
  });
}

void CudaOps::CrossBoundary(const Boundary& boundary) {
  BoundaryArguments arguments{.tokens = tokens(boundary.streams).count,
                              .hidden = config_.hidden_size,
                              .streams = static_cast<int>(config_.hc_streams),
                              .residual = Data<Bf16>(boundary.streams),
                              .post = post_,
                              .comb = comb_,
                              .scratch = memory_.scratch()};
  if (boundary.left) arguments.y = Data<Bf16>(boundary.y);
  if (boundary.entered) {
    arguments.entered = weights_.hyper_connection(HyperConnectionOf(*boundary.entered));
    arguments.norm = weights_.vector(NormOf(*boundary.entered));
    arguments.norm_eps = norm_eps();
    arguments.x = Data<Bf16>(boundary.x);
  }
  Do("hyper-connection", [&] { return LaunchBoundary(arguments, stream_); });
}

void CudaOps::Products(const Bf16* x, int64_t tokens,
                       std::span<const sm90::DenseProduct> products) {
  Do("product", [&] {
    return sm90::LaunchDense(
        {.x = x, .tokens = tokens, .products = products, .scratch = memory_.dense_scratch()},
        stream_);
  });
}

void CudaOps::Project(Rows x, std::span<const Product> products) {
  using sm90::DenseOutput;
  std::vector<sm90::DenseProduct> outputs;
  for (const Product& product : products) {
    const bool fp32 = CudaElementBytes(product.y.name) == sizeof(float);
    const DenseOutput output = !fp32                                 ? DenseOutput::kBf16
                               : product.rounding == Rounding::kBf16 ? DenseOutput::kF32OfBf16
                                                                     : DenseOutput::kF32;
    outputs.push_back({weights_.matrix(product.weight), Data<void>(product.y), output});
  }
  Products(Data<Bf16>(x), tokens(x).count, outputs);
}

void CudaOps::Store(const CacheRows& rows) {
  const int64_t layer = rows.attention.layer;
  Do("store of window rows", [&] {
    return LaunchStoreRows({.tokens = tokens(rows.window),
                            .sequences = step_->tables.sequences(),
                            .rope = step_->rope.of(rows.attention.kind),
                            .low_rank = Data<Bf16>(rows.low_rank),
                            .low_rank_columns = rows.low_rank.columns,
                            .low_rank_norm = weights_.vector(rows.low_rank_norm),
                            .window = Data<Bf16>(rows.window),
                            .head_dim = rows.window.columns,
                            .window_norm = weights_.vector(rows.window_norm),
                            .eps = norm_eps(),
                            .rows = step_->cache.window(layer)},
                           stream_);
  });
  const KvLayout& layout = step_->cache.layout();
  const KvLayout::Layer& kept = layout.layers()[static_cast<size_t>(layer)];
  const auto ring = [&](int64_t i) { return layout.rings()[static_cast<size_t>(i)]; };
  if (rows.entries) {
    Compress(rows.attention, *rows.entries, CompressedRowKind::kAttention,
             step_->cache.entries(layer), ring(kept.attention_ring));
  }
  if (rows.index) {
    Compress(rows.attention, *rows.index, CompressedRowKind::kIndex, step_->cache.index(layer),
             ring(kept.indexer_ring));
  }
}

void CudaOps::Compress(const AttentionLayer& attention, const Compression& compression,
                       CompressedRowKind kind, const DeviceRows& rows, const KvLayout::Ring& ring) {
  Do("store of compressed entries", [&] {
    return LaunchCompress(
        {.tokens = tokens(compression.kv),
         .sequences = step_->tables.sequences(),
         .rope = step_->rope.of(attention.kind),
         .kv = Data<float>(compression.kv),
         .score = Data<float>(compression.score),
         .position_bias = weights_.vector(compression.position_bias),
         .norm = weights_.vector(compression.norm),
         .eps = norm_eps(),
         .rate = attention.rate,
         .dim = compression.dim,
         .overlap = compression.overlap,
         .kind = kind,
         .rows = rows,
         .rings = step_->cache.state() + ring.offset,
         .slot_stride = step_->cache.layout().state_slot_bytes() / int64_t{sizeof(float)},
         .ring_rows = ring.rows()},
        stream_);
  });
}

void CudaOps::Select(const Selection& selection) {
  const int64_t longest = step_->shape.longest(selection.queries.tokens);
  const double factor =
      1.0 / std::sqrt(static_cast<double>(config_.index_head_dim * config_.index_heads));
  Do("selection of entries", [&] {
    return LaunchSelect({.tokens = tokens(selection.queries),
                         .sequences = step_->tables.sequences(),
                         .rope = step_->rope.of(selection.attention.kind),
                         .queries = Data<Bf16>(selection.queries),
                         .weights = Data<float>(selection.weights),
                         .weight_factor = static_cast<float>(factor),
                         .heads = config_.index_heads,
                         .dim = config_.index_head_dim,
                         .rate = selection.attention.rate,
                         .top_k = config_.index_topk,
                         .max_entries = longest / selection.attention.rate,
                         .keys = step_->cache.index(selection.attention.layer),
                         .selected = Data<int32_t>(selection.selected),
                         .counts = Data<int32_t>(selection.count),
                         .scratch = memory_.scratch()},
                        stream_);
  });
}

void CudaOps::Attend(const Attention& attention) {
  const auto& [layer, kind, rate] = attention.attention;
  AttentionArguments arguments{.tokens = tokens(attention.queries),
                               .sequences = step_->tables.sequences(),
                               .rope = step_->rope.of(kind),
                               .queries = Data<Bf16>(attention.queries),
                               .heads = config_.attention_heads,
                               .head_dim = config_.head_dim,
                               .norm_eps = norm_eps(),
                               .window = config_.sliding_window,
                               .rate = rate,
                               .window_rows = step_->cache.window(layer),
                               .entry_rows = step_->cache.entries(layer),
                               .sinks = weights_.vector(attention.sinks),
                               .attended = Data<Bf16>(attention.attended),
                               .scratch = memory_.scratch()};
  int64_t entries = rate > 0 ? step_->shape.longest(attention.queries.tokens) / rate : 0;
  if (attention.selection) {
    arguments.selected = Data<int32_t>(attention.selection->selected);
    arguments.selected_counts = Data<int32_t>(attention.selection->count);
    arguments.selected_stride = attention.selection->selected.columns;
    entries = std::min(entries, arguments.selected_stride);
  }
  arguments.max_keys = config_.sliding_window + entries;
  Do("attention", [&] { return LaunchAttention(arguments, stream_); });
}

void CudaOps::Route(const Choice& choice) {
  const CudaMoeBlock& moe = weights_.moe(choice.layer);
  const DeviceTokens of = tokens(choice.logits);
  Do("router", [&] {
    return LaunchRouter(moe.router,
                        {.logits = Data<float>(choice.logits),
                         .tokens = of.count,
                         .bias = moe.router_bias,
                         .table = moe.router_table,
                         .token_ids = of.token_ids,
                         .table_rows = moe.router_table != nullptr ? config_.vocab_size : 0,
                         .positions = of.positions,
                         .topk_ids = Data<int32_t>(choice.experts),
                         .topk_weights = Data<float>(choice.weights)},
                        stream_);
  });
}

Status CudaOps::RunExperts(const Experts& experts) {
  HB_RETURN_IF_ERROR(status_);
  const RowsScope scope(*this);
  const CudaMoeBlock& moe = weights_.moe(experts.layer);
  const int64_t count = tokens(experts.x).count;
  const int64_t hidden = config_.hidden_size, intermediate = config_.shared_size();
  float* const routed = TakeElements<float>(count * hidden);
  float* const shared = TakeElements<float>(count * hidden);
  float* const gate = TakeElements<float>(count * intermediate);
  float* const up = TakeElements<float>(count * intermediate);
  Bf16* const h = TakeElements<Bf16>(count * intermediate);
  const Bf16* const x = Data<Bf16>(experts.x);
  status_ = moe.routed.Run(stream_,
                           {.hidden = x,
                            .topk_ids = Data<int32_t>(experts.choice.experts),
                            .topk_weights = Data<float>(experts.choice.weights),
                            .tokens = count,
                            .top_k = config_.experts_per_token,
                            .out = routed,
                            .output = CudaMoeOutput::kF32,
                            .counters = moe.counters},
                           memory_.experts());
  const sm90::DenseProduct gate_up[] = {{moe.shared_gate, gate, sm90::DenseOutput::kF32},
                                        {moe.shared_up, up, sm90::DenseOutput::kF32}};
  Products(x, count, gate_up);
  Do("activation of the shared expert", [&] {
    return LaunchSwiglu({.limit = moe.swiglu.limit,
                         .alpha = moe.swiglu.alpha,
                         .add = moe.swiglu.add,
                         .gate = gate,
                         .up = up,
                         .count = count * intermediate,
                         .h = h},
                        stream_);
  });
  const sm90::DenseProduct down{moe.shared_down, shared, sm90::DenseOutput::kF32};
  Products(h, count, {&down, 1});
  Do("sum of the experts", [&] {
    return LaunchAddRows(
        {.a = routed, .b = shared, .count = count * hidden, .out = Data<Bf16>(experts.y)}, stream_);
  });
  return status_;
}

// As the CPU does: the rows of the wanted tokens come to the front.
void CudaOps::Keep(void* rows, int64_t row_bytes) {
  const DeviceTokens wanted = step_->tables.of(TokenSet::kWanted);
  const RowsScope scope(*this);
  std::byte* const kept = TakeBytes(wanted.count * row_bytes);
  Do("choice of rows", [&] {
    return LaunchKeepRows({.from = rows,
                           .rows = wanted.source_rows,
                           .count = wanted.count,
                           .row_bytes = row_bytes,
                           .to = kept},
                          stream_);
  });
  Do("choice of rows", [&] {
    return cudaMemcpyAsync(rows, kept, static_cast<size_t>(wanted.count * row_bytes),
                           cudaMemcpyDeviceToDevice, stream_);
  });
}

Rows CudaOps::KeepWanted(Rows all) {
  const Rows kept{all.name, TokenSet::kWanted, all.columns};
  const int64_t wanted = tokens(kept).count, n = config_.hc_streams;
  if (wanted == tokens(all).count) return kept;
  Keep(Data<void>(all), all.columns * CudaElementBytes(all.name));
  if (all.name == RowsName::kStreams) {
    Keep(post_, n * int64_t{sizeof(float)});
    Keep(comb_, n * n * int64_t{sizeof(float)});
  }
  return kept;
}

void CudaOps::MergeStreams(Rows streams, Rows x, Rounding) {
  Do("merge of the streams", [&] {
    return LaunchMergeStreams({.tokens = tokens(x).count,
                               .hidden = config_.hidden_size,
                               .residual = Data<Bf16>(streams),
                               .head = weights_.hyper_connection(HeadHyperConnection()),
                               .norm = weights_.vector(ModuleKey::Global(Module::kNorm)),
                               .norm_eps = norm_eps(),
                               .x = Data<Bf16>(x),
                               .scratch = memory_.scratch()},
                              stream_);
  });
}

void CudaOps::Logits(Rows x, const ModuleKey& head) {
  const sm90::DenseProduct product{weights_.matrix(head), step_->logits, sm90::DenseOutput::kF32};
  Products(Data<Bf16>(x), tokens(x).count, {&product, 1});
}

std::vector<float> CudaOps::Read(Rows rows) const {
  const int64_t count = tokens(rows).count * rows.columns;
  const int64_t bytes = count * CudaElementBytes(rows.name);
  std::vector<std::byte> raw(static_cast<size_t>(bytes));
  std::vector<float> numbers(static_cast<size_t>(count));
  // What failed before comes out here too, and again at the end of the step.
  if (cudaStreamSynchronize(stream_) != cudaSuccess ||
      cudaMemcpy(raw.data(), Data<void>(rows), raw.size(), cudaMemcpyDeviceToHost) != cudaSuccess) {
    return numbers;
  }
  const bool integers = rows.name == RowsName::kChoices || rows.name == RowsName::kSelected ||
                        rows.name == RowsName::kSelectedCount;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (CudaElementBytes(rows.name) == sizeof(Bf16)) {
      Bf16 value;
      std::memcpy(&value, raw.data() + i * sizeof(value), sizeof(value));
      numbers[i] = ToFloat(value);
    } else if (integers) {
      int32_t value = 0;
      std::memcpy(&value, raw.data() + i * sizeof(value), sizeof(value));
      numbers[i] = static_cast<float>(value);
    } else {
      std::memcpy(&numbers[i], raw.data() + i * sizeof(float), sizeof(float));
    }
  }
  return numbers;
}

}  // namespace halfbyte
