#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/compressor/compressor.h"
#include "kernels/simd16_exp.h"

namespace halfbyte {
namespace {

float ExpOf(float x) {
  float lanes[16];
  HB_SIMD_NAMESPACE::Store16(lanes, HB_SIMD_NAMESPACE::Exp(HB_SIMD_NAMESPACE::Set16(x)));
  return lanes[0];
}

}  // namespace

void PoolEntryReference(const Compressor& compressor, const CompressorRing& ring, int64_t entry,
                        float* out) {
  const int64_t own = entry * compressor.rate;
  // Entry 0 has no previous group: those rows have weight 0.
  const int64_t begin = compressor.overlap ? std::max<int64_t>(0, own - compressor.rate) : own;
  const int64_t channels = compressor.channels();
  for (int64_t c = 0; c < compressor.dim; ++c) {
    const auto kv = [&](int64_t position) {
      const bool second = compressor.overlap && position >= own;
      return ring.slot(position, channels) + (second ? compressor.dim : 0) + c;
    };
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t p = begin; p < own + compressor.rate; ++p) {
      const float score = kv(p)[channels];
      largest = score < largest ? largest : score;
    }
    float sum = 0;
    float weighted = 0;
    for (int64_t p = begin; p < own + compressor.rate; ++p) {
      const float weight = ExpOf(kv(p)[channels] - largest);
      sum += weight;
      weighted = std::fma(weight, kv(p)[0], weighted);
    }
    out[c] = weighted / sum;
  }
}

}  // namespace halfbyte
