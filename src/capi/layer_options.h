// halfbyte_moe_options, checked and in the project's own types.
#pragma once

#include <halfbyte/moe.h>

#include <optional>

#include "base/result.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "model/load_routed_layer.h"

namespace halfbyte {

struct LayerOptions {
  RoutedLayerOptions routed;
  int threads = 1;
  int32_t ranks = 1;
  int32_t rank = 0;
  std::optional<int32_t> gpu;  // none: the CPU

  Result<ExpertPlacement> Placement(int64_t experts) const;
};

// options may be NULL. A GPU that they name can compute layers.
Result<LayerOptions> ReadLayerOptions(const halfbyte_moe_options* options);

}  // namespace halfbyte
