// halfbyte_moe_options, checked and in the project's own types.
#pragma once

#include <halfbyte/moe.h>

#include "base/result.h"
#include "model/routed_layer.h"
#include "moe/expert_placement.h"

namespace halfbyte {

struct LayerOptions {
  RoutedLayerOptions routed;
  int threads = 1;
  int32_t ranks = 1;
  int32_t rank = 0;

  Result<ExpertPlacement> Placement(int64_t experts) const;
};

// options may be NULL.
Result<LayerOptions> ReadLayerOptions(const halfbyte_moe_options* options);

}  // namespace halfbyte
