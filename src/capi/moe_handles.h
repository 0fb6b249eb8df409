// What the two opaque types of the C interface hold.
#pragma once

#include <halfbyte/moe.h>

#include <atomic>
#include <memory>
#include <optional>

#include "capi/layer_options.h"
#include "checkpoint/model_checkpoint.h"
#include "moe/expert_layer.h"

struct halfbyte_moe_layer {
  std::unique_ptr<halfbyte::ModelCheckpoint>
      checkpoint;              // owns the bytes of the layer, if it is of one
  std::optional<int32_t> gpu;  // as in LayerOptions
  int threads = 0;             // of each workspace; 0 on a GPU
  std::unique_ptr<halfbyte::ExpertLayer> experts;
};

struct halfbyte_moe_workspace {
  std::optional<int32_t> gpu;
  halfbyte::MoeLimits limits;
  std::unique_ptr<halfbyte::ExpertLayer::Workspace> memory;
  std::atomic<bool> in_use = false;
};

namespace halfbyte {

// The layer's own checks on input (layer_options.h) are done; these build it. See moe.h.
Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromCheckpoint(const char* directory,
                                                                int64_t layer,
                                                                const LayerOptions& options);
Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromTensors(const halfbyte_moe_weights& weights,
                                                             const LayerOptions& options);
// On the device of the options.
Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromParts(RoutedLayerParts parts,
                                                           const LayerOptions& options);

// The largest number of experts, and of elements of a row.
inline constexpr int64_t kMaxExperts = 1 << 20;
inline constexpr int64_t kMaxWidth = 1 << 24;

}  // namespace halfbyte
