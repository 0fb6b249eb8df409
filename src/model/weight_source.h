// Where a model's weights come from, module by module, before a device keeps them in its own form:
// a checkpoint (checkpoint_weights.h), or a benchmark's made-up ones.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/stored_weight.h"
#include "checkpoint/tensor_name.h"

namespace halfbyte {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& config() const = 0;

  // A matrix in its stored format; the source must outlive its use. Errors, which name the tensor:
  // absent, its parts do not fit together, a scale that is none.
  virtual Result<StoredWeight> Stored(const ModuleKey& key) const = 0;
  // The same without a look at its bytes, which need not be there: for plans, and for what is
  // needed of other ranks' experts.
  virtual Result<StoredWeight> Unread(const ModuleKey& key) const = 0;
  // Norms, biases, scales: `count` finite numbers.
  virtual Result<std::vector<float>> Vector(const ModuleKey& key, int64_t count) const = 0;
  // tid2eid: [vocab, top_k] ids of experts, each in range and none twice for a token.
  virtual Result<std::vector<int32_t>> RouterTable(const ModuleKey& key) const = 0;

  // What is stored of each layer; the last element: of what belongs to none.
  virtual std::vector<int64_t> LayerBytes() const = 0;

  // Stored, of the config's size.
  Result<StoredWeight> Matrix(const ModuleKey& key) const;
  // Vector, of the config's size.
  Result<std::vector<float>> Vector(const ModuleKey& key) const;
};

}  // namespace halfbyte
