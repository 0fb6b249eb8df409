// Rotation frequencies of a model's layers.
#pragma once

#include <vector>

#include "checkpoint/model_config.h"

namespace halfbyte {

// Of both kinds of layers: those with the window alone, and those that compress.
struct RopeTables {
  std::vector<double> window;
  std::vector<double> compressed;

  explicit RopeTables(const ModelConfig& config);
  const std::vector<double>& of(AttentionKind kind) const {
    return kind == AttentionKind::kWindow ? window : compressed;
  }
};

}  // namespace halfbyte
