// Models to be measured without their weights: by the name of a released one or from a config.json,
// and with fewer layers or experts.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "checkpoint/model_config.h"

namespace halfbyte {

// "v4-flash", "v4-pro", or the path of a config.json. Errors: those of reading one.
Result<ModelConfig> ReadModelShape(const std::string& shape);

// A part of a model that has so many layers, in the model's proportions of kinds. From half of the
// depth on these are its first layers. Below that the layers before the first that compresses four
// to one are left out, for the rest goes on in turns: two layers are one of each compressing kind.
// Layers that choose experts by token id are the exception (three of 43), and choose by scores
// unless the depth is whole. Error: more layers than there are.
Result<ModelConfig> TakeLayers(ModelConfig model, int64_t layers);

// With fewer experts, of which a token chooses as many as before. Error: fewer than these, or more
// than there are.
Result<ModelConfig> TakeExperts(ModelConfig model, int64_t experts);

}  // namespace halfbyte
