// Sizes for which steps of generation are captured as graphs: each sequence has one new token and
// wants its logits. A step is padded to the smallest that it fits.
#pragma once

#include <cstdint>
#include <optional>

#include "checkpoint/model_config.h"
#include "model/cuda/cuda_step_tables.h"

namespace halfbyte {

inline constexpr int64_t kDecodeBuckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};

// The smallest bucket that holds so many sequences; nothing: too many.
std::optional<int64_t> DecodeBucket(int64_t sequences);

// The sizes that a step of generation is padded to. Contexts are bounded in steps of four, from the
// longest in which no layer selects entries, to `most_context`. Nothing if it is no step of
// generation, or has more rows than `most_rows` after padding.
std::optional<StepSizes> DecodeSizes(const ModelConfig& config, const StepSizes& step,
                                     int64_t most_rows, int64_t most_context);

}  // namespace halfbyte
