// Reads one model's tensors by module: big matrices as views of the mapped checkpoint, small
// vectors copied as fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/model_checkpoint.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

class WeightLoader {
 public:
  // `packing_pool`: rearranges matrices for bf16 activations (projection.h); null: they are used as
  // they are stored.
  explicit WeightLoader(const ModelCheckpoint& checkpoint, ThreadPool* packing_pool = nullptr)
      : checkpoint_(&checkpoint), packing_pool_(packing_pool) {}

  const ModelConfig& config() const { return checkpoint_->config(); }
  ThreadPool* packing_pool() const { return packing_pool_; }

  // A matrix in its stored format. Errors, which name the tensor: absent, its parts do not fit
  // together, a scale that is none (all scale bytes are read and their pages given back).
  Result<StoredWeight> Stored(const ModuleKey& key) const;
  // The same without a look at its scale bytes: for what is needed of other ranks' experts.
  Result<StoredWeight> Unread(const ModuleKey& key) const { return checkpoint_->FindWeight(key); }
  // Of that size.
  Result<StoredWeight> Stored(const ModuleKey& key, int64_t rows, int64_t columns) const;
  Result<WeightMatrix> Matrix(const ModuleKey& key, int64_t rows, int64_t columns) const;
  // Norms, biases, scales: `count` finite numbers (F32, BF16 or F16), in any shape.
  Result<std::vector<float>> Vector(const ModuleKey& key, int64_t count) const;
  // tid2eid: [vocab, top_k] ids of experts, I64 or I32, each in range and none twice for
  // a token.
  Result<std::vector<int32_t>> RouterTable(const ModuleKey& key) const;

 private:
  const ModelCheckpoint* checkpoint_;
  ThreadPool* packing_pool_;
};

}  // namespace halfbyte
