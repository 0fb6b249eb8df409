// Rotary position embedding on the last dimensions of a row, adjacent pairs (2i, 2i+1), with
// optional YaRN frequencies and no magnitude correction (deepseek-v4.md §2.2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/context.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct Yarn {
  double factor = 16;
  double original_max_position = 65536;
  double beta_fast = 32;
  double beta_slow = 1;
};

// Radians per position of each of the dims/2 pairs.
std::vector<double> RopeFrequencies(double theta, int64_t dims, const std::optional<Yarn>& yarn);

// Cosines and sines of some positions: angles in double, results in fp32.
struct RopeAngles {
  int64_t pairs = 0;
  std::vector<float> cos;  // [positions, pairs]
  std::vector<float> sin;

  // Replaces the content.
  void Set(std::span<const double> frequencies, std::span<const int64_t> positions);
};

// Rotates, in place, the last 2 * angles.pairs elements of every head of every token.
// x: [tokens, heads * head_dim]; token t uses row first + t of `angles`. `inverse` rotates back.
void ApplyRope(const Context& context, const RopeAngles& angles, int64_t heads, bool inverse,
               Rounding rounding, MatrixView<float> x, int64_t first = 0);

// One vector of 2 * pairs elements.
void RotatePairs(const float* cos, const float* sin, int64_t pairs, bool inverse, Rounding rounding,
                 float* x);

}  // namespace halfbyte
