// What the operations of a step must at least read and compute, from its sizes and its choices of
// experts alone: what their times are judged by.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/batch_item.h"
#include "model/kv_layout.h"
#include "model/program/model_ops.h"
#include "model/weight_source.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

inline constexpr int kWeightFormats = static_cast<int>(WeightFormat::kMxfp4) + 1;

// A multiply-add is two.
struct OperationWork {
  int64_t weight_bytes = 0;  // as stored; each weight once, however many tokens it meets
  int64_t cache_bytes = 0;   // rows of the KV cache; each once for its sequence
  std::array<int64_t, kWeightFormats> product_flops = {};  // with weights of each format
  int64_t other_flops = 0;  // attention, scores of entries, hyper-connections

  int64_t bytes() const { return weight_bytes + cache_bytes; }
  int64_t all_product_flops() const;
  OperationWork& operator+=(const OperationWork& other);
};

// Sizes of a source's weights, looked up once each.
class WeightSizes {
 public:
  // Must outlive it, and have every weight that is asked for.
  explicit WeightSizes(const WeightSource& source) : source_(source) {}

  // The product of so many tokens with the matrix.
  OperationWork Product(const ModuleKey& key, int64_t tokens);
  int64_t RowBytes(const ModuleKey& key) { return Of(key).bytes / Of(key).rows; }
  const ModelConfig& config() const { return source_.config(); }

 private:
  struct Size {
    WeightFormat format;
    int64_t rows, columns, bytes;
  };
  const Size& Of(const ModuleKey& key);

  const WeightSource& source_;
  std::unordered_map<ModuleKey, Size> sizes_;
};

// Of one step.
class StepWork {
 public:
  // All must outlive it.
  StepWork(WeightSizes& sizes, const KvLayout& cache, std::span<const PlacedItem> batch)
      : sizes_(sizes), cache_(cache), batch_(batch) {}

  OperationWork Embed(const ModuleKey& table, Rows streams);
  OperationWork CrossBoundary(const ModelOps::Boundary& boundary);
  OperationWork Project(Rows x, std::span<const Product> products);
  OperationWork Select(const ModelOps::Selection& selection);
  OperationWork Attend(const ModelOps::Attention& attention);
  // choices: ids of experts.
  OperationWork RunExperts(const ModelOps::Experts& experts, std::span<const float> choices);
  OperationWork MergeStreams(Rows streams);
  OperationWork Logits(Rows x, const ModuleKey& head);

 private:
  int64_t Tokens(TokenSet tokens) const;
  template <class Body>
  void ForSequences(TokenSet tokens, const Body& body) const;

  WeightSizes& sizes_;
  const KvLayout& cache_;
  const std::span<const PlacedItem> batch_;
};

}  // namespace halfbyte
