// Reads one model's tensors by module: big matrices stay in the mapped checkpoint and are used from
// there, small vectors are copied as fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_checkpoint.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

class WeightLoader {
 public:
  explicit WeightLoader(const ModelCheckpoint& checkpoint) : checkpoint_(&checkpoint) {}

  const ModelConfig& config() const { return checkpoint_->config(); }

  // A matrix in its stored format. Errors, which name the tensor: absent, its parts do not fit
  // together, a scale that is none (all scale bytes are read and their pages given back).
  Result<StoredWeight> Stored(const ModuleKey& key) const;
  // The same without a look at its scale bytes: for what is needed of other ranks' experts.
  Result<StoredWeight> Unread(const ModuleKey& key) const { return checkpoint_->FindWeight(key); }
  // The same, of that size.
  Result<WeightMatrix> Matrix(const ModuleKey& key, int64_t rows, int64_t columns) const;
  // Norms, biases, scales: `count` finite numbers (F32, BF16 or F16), in any shape.
  Result<std::vector<float>> Vector(const ModuleKey& key, int64_t count) const;
  // tid2eid: [vocab, top_k] ids of experts, I64 or I32, each in range and none twice for
  // a token.
  Result<std::vector<int32_t>> RouterTable(const ModuleKey& key) const;

 private:
  const ModelCheckpoint* checkpoint_;
};

}  // namespace halfbyte
