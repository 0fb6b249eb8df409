#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/simd16_exp.h"

namespace halfbyte {
namespace {

constexpr int64_t kLanes = 16;

float SumOfLanes(std::vector<float> lanes) {
  for (size_t width = kLanes / 2; width >= 1; width /= 2) {
    for (size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

float ExpOf(float x) {
  float lanes[kLanes];
  HB_SIMD_NAMESPACE::Store16(lanes, HB_SIMD_NAMESPACE::Exp(HB_SIMD_NAMESPACE::Set16(x)));
  return lanes[0];
}

// The queries and weights of kBf16.
float ZeroIfTiny(float x) { return std::abs(x) < 0x1p-60f ? 0.0f : x; }

using Keys = std::vector<std::vector<float>>;

Keys KeysOf(const AttentionShape& shape, const AttentionSequence& sequence,
            const EntrySelection& selection, int64_t i) {
  Keys keys;
  const auto add = [&](const PagedRows& rows, int64_t row) {
    keys.emplace_back(static_cast<size_t>(shape.row.head_dim));
    DecodeKvRow(shape.row, rows.row(row), keys.back().data());
  };
  const int64_t position = sequence.position + i;
  const int64_t token = sequence.first + i;
  const int64_t begin = std::max(sequence.window_start, position - shape.window + 1);
  for (int64_t p = begin; p <= position; ++p) add(sequence.window, p);
  if (selection.indices == nullptr) {
    for (int64_t e = 0; e < VisibleEntries(position, shape.rate); ++e) add(sequence.compressed, e);
  } else {
    for (int64_t j = 0; j < selection.counts[token]; ++j) {
      add(sequence.compressed, selection.indices[token * selection.stride + j]);
    }
  }
  return keys;
}

float Score(const std::vector<float>& key, const float* q, Rounding rounding) {
  std::vector<float> lanes(kLanes);
  for (size_t d = 0; d < key.size(); ++d) {
    const float query = rounding == Rounding::kBf16 ? ZeroIfTiny(q[d]) : q[d];
    lanes[d % kLanes] = std::fma(query, key[d], lanes[d % kLanes]);
  }
  return SumOfLanes(lanes) * (1.0f / std::sqrt(static_cast<float>(key.size())));
}

void AttendHead(const Keys& keys, const float* q, float sink, Rounding rounding, float* out) {
  std::vector<float> weights;
  for (const std::vector<float>& key : keys) weights.push_back(Score(key, q, rounding));
  weights.push_back(sink);
  float largest = -std::numeric_limits<float>::infinity();
  for (const float score : weights) largest = score > largest ? score : largest;  // never NaN
  std::vector<float> sums(kLanes);
  for (size_t j = 0; j < weights.size(); ++j) {
    weights[j] = Round(rounding, ExpOf(weights[j] - largest));
    if (rounding == Rounding::kBf16) weights[j] = ZeroIfTiny(weights[j]);
    sums[j % kLanes] += weights[j];
  }
  const float share = 1.0f / SumOfLanes(sums);
  for (size_t d = 0; d < keys[0].size(); ++d) {
    float total = 0;
    for (size_t j = 0; j < keys.size(); ++j) total = std::fma(weights[j], keys[j][d], total);
    out[d] = Round(rounding, total * share);
  }
}

}  // namespace

void AttentionReference(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
                        const EntrySelection& selection, MatrixView<const float> q,
                        Rounding rounding, MatrixView<float> out) {
  const int64_t dim = shape.row.head_dim;
  for (const AttentionSequence& sequence : sequences) {
    for (int64_t i = 0; i < sequence.count; ++i) {
      const int64_t token = sequence.first + i;
      const Keys keys = KeysOf(shape, sequence, selection, i);
      for (int64_t h = 0; h < shape.heads; ++h) {
        AttendHead(keys, q.row(token) + h * dim, shape.sinks[h], rounding,
                   out.row(token) + h * dim);
      }
    }
  }
}

}  // namespace halfbyte
