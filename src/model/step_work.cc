#include "model/step_work.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace halfbyte {

int64_t OperationWork::all_product_flops() const {
  return std::accumulate(product_flops.begin(), product_flops.end(), int64_t{0});
}

OperationWork& OperationWork::operator+=(const OperationWork& other) {
  weight_bytes += other.weight_bytes;
  cache_bytes += other.cache_bytes;
  for (size_t i = 0; i < product_flops.size(); ++i) product_flops[i] += other.product_flops[i];
  other_flops += other.other_flops;
  return *this;
}

const WeightSizes::Size& WeightSizes::Of(const ModuleKey& key) {
  const auto [found, is_new] = sizes_.try_emplace(key);
  if (is_new) {
    const auto stored = source_.Unread(key);
    HB_CHECK(stored.has_value(), "{}", stored.error().message);
    const WeightMatrix& w = stored->matrix;
    found->second = {w.format, w.rows, w.columns, w.bytes()};
  }
  return found->second;
}

OperationWork WeightSizes::Product(const ModuleKey& key, int64_t tokens) {
  const Size& size = Of(key);
  OperationWork work{.weight_bytes = size.bytes};
  work.product_flops[static_cast<size_t>(size.format)] = 2 * tokens * size.rows * size.columns;
  return work;
}

// Calls body(first, last), positions of each sequence's tokens of the set.
template <class Body>
void StepWork::ForSequences(TokenSet tokens, const Body& body) const {
  for (const PlacedItem& item : batch_) {
    const int64_t all = std::ssize(item.tokens);
    const int64_t count = tokens == TokenSet::kAll ? all : item.logits_rows();
    const int64_t end = item.pages->position + all;
    if (count > 0) body(end - count, end - 1);
  }
}

int64_t StepWork::Tokens(TokenSet tokens) const {
  int64_t count = 0;
  ForSequences(tokens, [&](int64_t first, int64_t last) { count += last - first + 1; });
  return count;
}

OperationWork StepWork::Embed(const ModuleKey& table, Rows streams) {
  return {.weight_bytes = Tokens(streams.tokens) * sizes_.RowBytes(table)};
}

OperationWork StepWork::CrossBoundary(const ModelOps::Boundary& boundary) {
  const ModelConfig& c = sizes_.config();
  const int64_t tokens = Tokens(boundary.streams.tokens), n = c.hc_streams;
  OperationWork work;
  if (boundary.left) work.other_flops += 2 * tokens * (n + 1) * n * c.hidden_size;
  if (!boundary.entered) return work;
  const OperationWork product = sizes_.Product(HyperConnectionOf(*boundary.entered).fn, tokens);
  work.weight_bytes = product.weight_bytes;
  work.other_flops += product.all_product_flops() + 2 * tokens * n * c.hidden_size;
  return work;
}

OperationWork StepWork::Project(Rows x, std::span<const Product> products) {
  OperationWork work;
  for (const Product& product : products) {
    work += sizes_.Product(product.weight, Tokens(x.tokens));
  }
  return work;
}

OperationWork StepWork::Select(const ModelOps::Selection& selection) {
  const ModelConfig& c = sizes_.config();
  const int64_t rate = selection.attention.rate;
  OperationWork work;
  ForSequences(selection.queries.tokens, [&](int64_t first, int64_t last) {
    work.cache_bytes += (last + 1) / rate * cache_.index_row().bytes();
    for (int64_t p = first; p <= last; ++p) {
      work.other_flops += 2 * c.index_heads * c.index_head_dim * ((p + 1) / rate);
    }
  });
  return work;
}

OperationWork StepWork::Attend(const ModelOps::Attention& attention) {
  const ModelConfig& c = sizes_.config();
  const int64_t rate = attention.attention.rate;
  const auto visible = [&](int64_t position) { return rate > 0 ? (position + 1) / rate : 0; };
  OperationWork work;
  ForSequences(attention.queries.tokens, [&](int64_t first, int64_t last) {
    int64_t keys = 0, entries = 0;
    for (int64_t p = first; p <= last; ++p) {
      const int64_t chosen = attention.selection ? std::min(visible(p), c.index_topk) : visible(p);
      entries += chosen;
      keys += chosen + std::min(p + 1, c.sliding_window);
    }
    const int64_t window = std::min(last + 1, c.sliding_window + last - first);
    work.cache_bytes += (window + std::min(entries, visible(last))) * cache_.kv_row().bytes();
    work.other_flops += 4 * c.attention_heads * c.head_dim * keys;
  });
  return work;
}

OperationWork StepWork::RunExperts(const ModelOps::Experts& experts,
                                   std::span<const float> choices) {
  std::vector<int64_t> slots(static_cast<size_t>(sizes_.config().routed_experts));
  for (const float id : choices) ++slots[static_cast<size_t>(id)];
  OperationWork work;
  for (int64_t e = 0; e < std::ssize(slots); ++e) {
    const int64_t tokens = slots[static_cast<size_t>(e)];
    if (tokens == 0) continue;
    for (const Module m : {Module::kExpertGate, Module::kExpertUp, Module::kExpertDown}) {
      work += sizes_.Product(ModuleKey::Layer(experts.layer, m, e), tokens);
    }
  }
  for (const Module m : {Module::kSharedGate, Module::kSharedUp, Module::kSharedDown}) {
    work += sizes_.Product(ModuleKey::Layer(experts.layer, m), Tokens(experts.x.tokens));
  }
  return work;
}

OperationWork StepWork::MergeStreams(Rows streams) {
  const OperationWork product = sizes_.Product(HeadHyperConnection().fn, Tokens(streams.tokens));
  return {.weight_bytes = product.weight_bytes, .other_flops = product.all_product_flops()};
}

OperationWork StepWork::Logits(Rows x, const ModuleKey& head) {
  return sizes_.Product(head, Tokens(x.tokens));
}

}  // namespace halfbyte
