// Runs a model over text and measures what flows into the stages of its experts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/transformer.h"
#include "moe/activation_scales.h"

namespace halfbyte {

// Each sequence starts afresh. The checkpoint's own scales, times 2^headroom, are judged on the
// way. The model must not quantize activations itself (not w4a4). If its experts are spread over
// ranks, all ranks call this alike, and all get what one rank with all experts would measure.
// `progress` is told the tokens done after each forward call. Errors: no token; what Forward
// returns; checkpoint scales that are not usable; another rank failed.
Result<ActivationMeasurement> MeasureActivations(
    Transformer& model, std::span<const std::vector<int32_t>> sequences, int headroom,
    const std::function<void(int64_t tokens)>& progress);

}  // namespace halfbyte
