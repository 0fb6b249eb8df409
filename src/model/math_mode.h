// Which arithmetic the model runs in.
#pragma once

#include "numerics/rounding.h"

namespace halfbyte {

enum class MathMode {
  // Structure oracle: fp32 activations and KV rows, exact weights, none of the roundings that the
  // model defines for low precision. What a framework computes in float32.
  kFp32,
  // As the model is meant to run: bf16 activations, FP8 KV rows, Hadamard + FP4 index keys.
  kDefault,
};

// What the model's rounding points do.
inline Rounding RoundingOf(MathMode math) {
  return math == MathMode::kFp32 ? Rounding::kNone : Rounding::kBf16;
}

}  // namespace halfbyte
