// The gated activation between the two products of an expert (moe-layer.md §4, checkpoints.md
// §5.3):
//
//   g = min(alpha_gate * gate, limit)          no lower clamp on the gate
//   u = clamp(alpha_up * up, -limit, limit)
//   h = round(g / (1 + exp(-alpha * g)) * (u + add) * weight)
//
// all in fp32, each operation one IEEE operation; exp is within 4 units in the last place on
// [-87, 88] and infinite above. Bits do not depend on the instruction set. NaN stays NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "device/context.h"
#include "numerics/rounding.h"

namespace halfbyte {

struct SwigluParams {
  float limit = std::numeric_limits<float>::infinity();  // infinity: no clamp. DeepSeek-V4: 10
  float alpha = 1;                                       // gpt-oss: 1.702
  float add = 0;                                         // gpt-oss: 1
};

struct SwigluRowArguments {
  const float* gate = nullptr;  // [n] raw sums, before their scales
  const float* up = nullptr;    // [n]
  float* h = nullptr;           // [n]; may be gate or up
  int64_t n = 0;
  float alpha_gate = 1;  // activation global_scale * gate's global_scale
  float alpha_up = 1;
  float weight = 1;  // routing weight, if it comes before `down`
  Rounding rounding = Rounding::kNone;
};

// One row, in the calling thread.
void SwigluRow(const Context& context, const SwigluParams& params,
               const SwigluRowArguments& arguments);

// The formula in double for one element with all scales 1: the judge.
inline double SwigluReference(const SwigluParams& params, double gate, double up) {
  const double limit = params.limit;
  const double g = gate > limit ? limit : gate;
  const double u = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1 + std::exp(-double{params.alpha} * g)) * (u + params.add);
}

}  // namespace halfbyte
