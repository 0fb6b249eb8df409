// Which tensors a DeepSeek-V4 checkpoint must hold, from its config (checkpoints.md §1).
#pragma once

#include <optional>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/tensor_name.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// Logical shape (4-bit matrices unpacked) of a module, experts one by one; fused expert tensors
// have three dimensions. Nothing if the config has no such module: no compressor in a window layer,
// no selection bias in a hash layer, layer or expert out of range.
std::optional<Shape> ExpectedShape(const ModelConfig& config, const ModuleKey& key);

// Whether the module is a matrix that may be stored quantized (FindWeight); everything else is read
// as it is (FindTensor).
bool IsMatrix(Module module);

// Every module that the main model (global and layers) needs, experts one by one.
std::vector<ModuleKey> RequiredModules(const ModelConfig& config);

// The same for draft stage `stage`, an ordinary window layer with a learned router plus the modules
// that tie it to the main model: one plain MTP stage or several DSpark stages.
std::vector<ModuleKey> RequiredMtpModules(const ModelConfig& config, int64_t stage);

}  // namespace halfbyte
