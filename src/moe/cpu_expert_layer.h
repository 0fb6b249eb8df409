// A layer of experts on the CPU.
#pragma once

#include <memory>

#include "base/result.h"
#include "moe/expert_layer.h"

namespace halfbyte {

// So many threads pack the experts, and then work in each workspace.
Result<std::unique_ptr<ExpertLayer>> CreateCpuExpertLayer(RoutedLayerParts parts, int threads);

}  // namespace halfbyte
