// halfbyte_moe_options, checked and in the project's own types.
#pragma once

#include <halfbyte/moe.h>

#include <span>
#include <string_view>

#include "base/result.h"
#include "moe/expert_placement.h"
#include "moe/moe_layer.h"

namespace halfbyte {

struct LayerOptions {
  Arithmetic arithmetic = Arithmetic::kW4a16;
  bool round_activations = true;
  int threads = 1;
  int32_t activation_scales = HALFBYTE_MOE_SCALES_AUTO;
  int headroom = kDefaultHeadroom;
  int32_t ranks = 1;
  int32_t rank = 0;

  Result<ExpertPlacement> Placement(int64_t experts) const;

  // The activation scales of the layer, by the policy, from the experts' input scales (both empty:
  // there are none). Error: static scales wanted and none there, or unusable ones.
  Status SetActivationScales(std::span<const float> gate_up, std::span<const float> down,
                             std::string_view name, MoeParams& params) const;
};

// options may be NULL.
Result<LayerOptions> ReadLayerOptions(const halfbyte_moe_options* options);

}  // namespace halfbyte
