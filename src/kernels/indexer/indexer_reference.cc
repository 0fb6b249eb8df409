#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/indexer/indexer.h"
#include "numerics/e2m1.h"
#include "numerics/e8m0.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

// A query's block as integers times a scale. What RoundIndexQuery made of it are multiples of
// 2^(e-1), if its largest is 4 or 6 times 2^e.
struct QueryBlock {
  int32_t integers[kMxfp4Block] = {};
  float scale = 0;

  QueryBlock(const float* x, int64_t count) {
    float amax = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      amax = std::max(amax, std::abs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    if (!finite) {
      scale = NAN;
      return;
    }
    int exponent = 0;
    std::frexp(amax, &exponent);  // amax is 1/2 or 3/4 times 2^exponent
    exponent = std::max(exponent - 3, -126);
    const float factor = std::ldexp(1.0f, 1 - exponent);
    for (int64_t i = 0; i < count; ++i) integers[i] = static_cast<int32_t>(x[i] * factor);
    scale = std::ldexp(1.0f, exponent - 1);
  }
};

float Mxfp4Dot(const float* q, const std::byte* key, int64_t dim) {
  const auto* codes = reinterpret_cast<const uint8_t*>(key);
  float dot = 0;
  for (int64_t begin = 0; begin < dim; begin += kMxfp4Block) {
    const int64_t count = std::min<int64_t>(kMxfp4Block, dim - begin);
    const QueryBlock query(q + begin, count);
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      sum +=
          query.integers[i] * static_cast<int32_t>(2 * E2m1ToFloat(UnpackE2m1(codes, begin + i)));
    }
    const float key_scale = E8m0ToFloat(codes[dim / 2 + begin / kMxfp4Block]) * 0.5f;
    dot = std::fma(static_cast<float>(sum), query.scale * key_scale, dot);
  }
  return dot;
}

float Fp32Dot(const float* q, const std::byte* key, int64_t dim) {
  float lanes[16] = {};
  for (int64_t i = 0; i < dim; ++i) {
    float value;
    std::memcpy(&value, key + i * int64_t{sizeof(value)}, sizeof(value));
    lanes[i % 16] = std::fma(q[i], value, lanes[i % 16]);
  }
  for (int width = 8; width >= 1; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

float Score(const Indexer& indexer, const float* q, const float* weights, const std::byte* key) {
  const int64_t dim = indexer.row.dim;
  const auto dot = indexer.row.format == IndexFormat::kMxfp4 ? Mxfp4Dot : Fp32Dot;
  float lanes[4] = {};
  for (int64_t h = 0; h < indexer.heads; ++h) {
    const float product = dot(q + h * dim, key, dim);
    float& lane = lanes[h % 8 / 2];
    lane = std::fma(weights[h], product < 0 ? 0.0f : product, lane);
  }
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

}  // namespace

void IndexScoresReference(const Indexer& indexer, std::span<const IndexerSequence> sequences,
                          MatrixView<const float> q, MatrixView<const float> weights,
                          MatrixView<float> scores) {
  for (const IndexerSequence& sequence : sequences) {
    for (int64_t i = 0; i < sequence.count; ++i) {
      const int64_t token = sequence.first + i;
      const int64_t visible = (sequence.position + i + 1) / indexer.rate;
      for (int64_t t = 0; t < visible; ++t) {
        scores.row(token)[t] =
            Score(indexer, q.row(token), weights.row(token), sequence.keys.row(t));
      }
    }
  }
}

}  // namespace halfbyte
