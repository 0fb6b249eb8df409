// A checkpoint as a source of weights: big matrices as views of its mapped files, small vectors
// copied as fp32.
#pragma once

#include "checkpoint/model_checkpoint.h"
#include "model/weight_source.h"

namespace halfbyte {

class CheckpointWeights : public WeightSource {
 public:
  explicit CheckpointWeights(const ModelCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  const ModelConfig& config() const override { return checkpoint_.config(); }
  // All scale bytes are read and their pages given back.
  Result<StoredWeight> Stored(const ModuleKey& key) const override;
  Result<StoredWeight> Unread(const ModuleKey& key) const override {
    return checkpoint_.FindWeight(key);
  }
  using WeightSource::Vector;
  // F32, BF16 or F16, in any shape.
  Result<std::vector<float>> Vector(const ModuleKey& key, int64_t count) const override;
  // I64 or I32.
  Result<std::vector<int32_t>> RouterTable(const ModuleKey& key) const override;

 private:
  const ModelCheckpoint& checkpoint_;
};

}  // namespace halfbyte
