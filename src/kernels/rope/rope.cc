#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/row_math.h"
#include "kernels/simd16.h"

namespace halfbyte {
namespace {

using namespace HB_SIMD_NAMESPACE;  // NOLINT: the baseline variants of simd16.h

// The (fractional) pair that turns `rotations` times over the original context.
double PairOfRotations(double rotations, double theta, int64_t dims, const Yarn& yarn) {
  return static_cast<double>(dims) *
         std::log(yarn.original_max_position / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

}  // namespace

std::vector<double> RopeFrequencies(double theta, int64_t dims, const std::optional<Yarn>& yarn) {
  std::vector<double> frequencies(static_cast<size_t>(dims / 2));
  double low = 0;
  double high = 0;
  if (yarn) {
    const double last = static_cast<double>(dims) - 1;
    low = std::clamp(std::floor(PairOfRotations(yarn->beta_fast, theta, dims, *yarn)), 0.0, last);
    high = std::clamp(std::ceil(PairOfRotations(yarn->beta_slow, theta, dims, *yarn)), 0.0, last);
    if (high <= low) high = low + 0.001;
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double pair = static_cast<double>(i);
    const double base = std::pow(theta, -2 * pair / static_cast<double>(dims));
    if (!yarn) {
      frequencies[i] = base;
      continue;
    }
    const double ramp = std::clamp((pair - low) / (high - low), 0.0, 1.0);
    frequencies[i] = base * (1 - ramp) + base / yarn->factor * ramp;
  }
  return frequencies;
}

void RopeAngles::Set(std::span<const double> frequencies, std::span<const int64_t> positions) {
  pairs = static_cast<int64_t>(frequencies.size());
  cos.resize(positions.size() * frequencies.size());
  sin.resize(cos.size());
  size_t out = 0;
  for (const int64_t position : positions) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      cos[out] = static_cast<float>(std::cos(angle));
      sin[out] = static_cast<float>(std::sin(angle));
      ++out;
    }
  }
}

void RotatePairs(const float* cos, const float* sin, int64_t pairs, bool inverse, Rounding rounding,
                 float* x) {
  int64_t i = 0;
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256 sign = _mm256_set1_ps(inverse ? -0.0f : 0.0f);
  for (; i + 4 <= pairs; i += 4) {
    const auto load_twice = [&](const float* p) {
      return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + i)), twice);
    };
    const __m256 c = load_twice(cos);
    const __m256 s = _mm256_xor_ps(load_twice(sin), sign);
    const __m256 both = _mm256_loadu_ps(x + 2 * i);
    const __m256 swapped = _mm256_permute_ps(both, 0xb1);
    const __m256 turned = _mm256_addsub_ps(_mm256_mul_ps(both, c), _mm256_mul_ps(swapped, s));
    _mm256_storeu_ps(x + 2 * i, rounding == Rounding::kBf16 ? RoundBf16(turned) : turned);
  }
  for (; i < pairs; ++i) {
    const float even = x[2 * i];
    const float odd = x[2 * i + 1];
    const float s = inverse ? -sin[i] : sin[i];
    x[2 * i] = Round(rounding, even * cos[i] - odd * s);
    x[2 * i + 1] = Round(rounding, even * s + odd * cos[i]);
  }
}

void ApplyRope(const Context& context, const RopeAngles& angles, int64_t heads, bool inverse,
               Rounding rounding, MatrixView<float> x, int64_t first) {
  const int64_t head_dim = x.columns / heads;
  const int64_t pairs = angles.pairs;
  context.pool().ParallelFor(x.rows, RowsPerPiece(x.columns), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        RotatePairs(&angles.cos[static_cast<size_t>((first + t) * pairs)],
                    &angles.sin[static_cast<size_t>((first + t) * pairs)], pairs, inverse, rounding,
                    x.row(t) + (h + 1) * head_dim - 2 * pairs);
      }
    }
  });
}

}  // namespace halfbyte
