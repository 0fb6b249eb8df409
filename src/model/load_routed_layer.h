// Reads the routed half of one layer (deepseek-v4.md §2.8) from a model's weights: for the model
// itself (model/cpu/moe_block.h) and for the C interface, on any device.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "model/weight_source.h"
#include "moe/activation_scales.h"
#include "moe/routed_layer.h"

namespace halfbyte {

struct RoutedLayerOptions {
  Arithmetic arithmetic = Arithmetic::kW4a16;
  bool round_activations = true;
  ActivationScalePolicy activation_scales;  // kW4a4 only
};

// The model whose layers they are, as measured activation scales name it.
MoeModelShape MoeShapeOf(const ModelConfig& config);

// Reads the experts that the placement gives to this rank; of the others nothing but their input
// scales, for every rank must come to the same activation scale (moe-layer.md §7). The source must
// outlive the result. Errors name the tensor or the layer.
Result<RoutedLayerParts> LoadRoutedLayer(const WeightSource& source, int64_t layer,
                                         const RoutedLayerOptions& options,
                                         const ExpertPlacement& placement);

}  // namespace halfbyte
