// A layer of experts on a GPU; in builds without CUDA, what says so.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "moe/expert_layer.h"

namespace halfbyte {

// Error: this GPU is not there or not of a kind that computes layers; in programs built without
// CUDA, that they are.
Status CheckGpu(int32_t ordinal);

// On that GPU; the parts' bytes are not needed afterwards. Errors: CheckGpu's,
// CudaMoeLayer::Create's.
Result<std::unique_ptr<ExpertLayer>> CreateCudaExpertLayer(RoutedLayerParts parts, int32_t ordinal);

}  // namespace halfbyte
