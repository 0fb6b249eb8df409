// A checkpoint as a source of weights: big matrices as views of its mapped files, small vectors
// copied as fp32.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/model_checkpoint.h"
#include "model/weight_source.h"

namespace halfbyte {

class CheckpointWeights : public WeightSource {
 public:
  // The checkpoint must outlive it; or it takes it.
  explicit CheckpointWeights(const ModelCheckpoint& checkpoint) : checkpoint_(checkpoint) {}
  explicit CheckpointWeights(ModelCheckpoint&& checkpoint)
      : own_(std::make_unique<const ModelCheckpoint>(std::move(checkpoint))), checkpoint_(*own_) {}

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
  std::vector<int64_t> LayerBytes() const override;

 private:
  std::unique_ptr<const ModelCheckpoint> own_;
  const ModelCheckpoint& checkpoint_;
};

}  // namespace halfbyte
