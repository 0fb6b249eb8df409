// Rotation frequencies of a kind of layer, from the model's config.
#pragma once

#include <vector>

#include "checkpoint/model_config.h"
#include "kernels/rope/rope.h"

namespace halfbyte {

inline std::vector<double> FrequenciesOf(const ModelConfig& config, AttentionKind kind) {
  const RopeConfig& rope = config.rope(kind);
  std::optional<Yarn> yarn;
  if (rope.yarn) {
    yarn = Yarn{rope.yarn->factor, static_cast<double>(rope.yarn->original_max_position),
                rope.yarn->beta_fast, rope.yarn->beta_slow};
  }
  return RopeFrequencies(rope.theta, config.rope_dim, yarn);
}

}  // namespace halfbyte
