// A model's weights without a checkpoint, for benches and tests: random numbers in the formats that
// DeepSeek-V4's NVFP4 checkpoints have (checkpoints.md §1, deepseek-v4.md §1.5), of a trained
// model's size, so that activations stay near 1 and tokens spread over the experts.
//
//   routed experts           NVFP4, with an input scale
//   attention's projections  FP8 E4M3 with E8M0 scales of 128 x 128 (wq_a, wq_b, wkv, wo_a, wo_b,
//                            the indexer's wq_b), like the shared expert
//   hyper-connections        fp32
//   everything else          bf16: compressors, index weights, router, embedding, head
//
// A weight's bytes are made when it is asked for and go when its pages are dropped
// (StoredWeight::DropPages). Its numbers depend on the seed and its name alone (Philox): FP8
// elements are uniform ones rounded to E4M3; of bf16 and fp32 numbers the sign, the mantissa and
// two bits of the exponent are random; of NVFP4 all bits of the codes.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/zeroed_memory.h"
#include "model/weight_source.h"

namespace halfbyte {

class SyntheticWeights : public WeightSource {
 public:
  // Made by the pool's threads, which must outlive it; one weight at a time. Error: sizes that
  // NVFP4 cannot have.
  static Result<std::unique_ptr<SyntheticWeights>> Create(ModelConfig config, ThreadPool& pool,
                                                          uint64_t seed = 0);

  const ModelConfig& config() const override { return config_; }
  Result<StoredWeight> Stored(const ModuleKey& key) const override;
  Result<StoredWeight> Unread(const ModuleKey& key) const override;  // without bytes
  using WeightSource::Vector;
  Result<std::vector<float>> Vector(const ModuleKey& key, int64_t count) const override;
  Result<std::vector<int32_t>> RouterTable(const ModuleKey& key) const override;
  std::vector<int64_t> LayerBytes() const override;

 private:
  SyntheticWeights(ModelConfig config, ThreadPool& pool, uint64_t seed)
      : config_(std::move(config)), pool_(pool), seed_(seed) {}
  uint64_t KeyOf(const ModuleKey& key) const;

  const ModelConfig config_;
  ThreadPool& pool_;
  const uint64_t seed_;
  mutable std::unordered_map<int64_t, ZeroedMemory> made_;  // by number, until dropped
  mutable int64_t next_ = 0;
};

}  // namespace halfbyte
