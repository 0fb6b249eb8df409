#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/row_math.h"

namespace halfbyte {
namespace {

// One thread's decoded rows and scores, kept between calls so that decode does not allocate.
struct Scratch {
  std::vector<float> rows;    // [keys, head_dim]
  std::vector<float> scores;  // [keys]
};

const AttentionSequence& SequenceOf(std::span<const AttentionSequence> sequences, int64_t token) {
  const auto next = std::upper_bound(
      sequences.begin(), sequences.end(), token,
      [](int64_t t, const AttentionSequence& sequence) { return t < sequence.first; });
  return *std::prev(next);
}

// Decodes every key that the token at `position` sees; returns how many.
int64_t GatherKeys(const AttentionShape& shape, const AttentionSequence& sequence,
                   const EntrySelection& selection, int64_t token, int64_t position,
                   Scratch& scratch) {
  const int64_t window_begin = std::max<int64_t>(0, position - shape.window + 1);
  const int64_t window_count = position + 1 - window_begin;
  const int64_t entry_count =
      selection.indices != nullptr ? selection.counts[token] : VisibleEntries(position, shape.rate);
  const int64_t dim = shape.row.head_dim;
  const int64_t keys = window_count + entry_count;
  // Each by its own size: other layers and models may have other row lengths.
  if (std::ssize(scratch.scores) < keys) scratch.scores.resize(static_cast<size_t>(keys));
  if (std::ssize(scratch.rows) < keys * dim) scratch.rows.resize(static_cast<size_t>(keys * dim));
  float* row = scratch.rows.data();
  for (int64_t p = window_begin; p <= position; ++p, row += dim) {
    DecodeKvRow(shape.row, sequence.window.row(p), row);
  }
  for (int64_t j = 0; j < entry_count; ++j, row += dim) {
    const int64_t entry =
        selection.indices != nullptr ? selection.indices[token * selection.stride + j] : j;
    DecodeKvRow(shape.row, sequence.compressed.row(entry), row);
  }
  return keys;
}

void AttendHead(const AttentionShape& shape, int64_t head, int64_t keys, const float* q,
                Rounding rounding, Scratch& scratch, float* out) {
  const int64_t dim = shape.row.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  float max = shape.sinks[head];
  for (int64_t j = 0; j < keys; ++j) {
    const float score = Dot(q, scratch.rows.data() + j * dim, dim) * scale;
    scratch.scores[static_cast<size_t>(j)] = score;
    max = std::max(max, score);
  }
  std::fill(out, out + dim, 0.0f);
  float sum = std::exp(shape.sinks[head] - max);
  for (int64_t j = 0; j < keys; ++j) {
    const float weight = std::exp(scratch.scores[static_cast<size_t>(j)] - max);
    sum += weight;
    AddScaled(weight, scratch.rows.data() + j * dim, out, dim);
  }
  for (int64_t i = 0; i < dim; ++i) out[i] = Round(rounding, out[i] / sum);
}

}  // namespace

void Attention(const Context& context, const AttentionShape& shape,
               std::span<const AttentionSequence> sequences, const EntrySelection& selection,
               MatrixView<const float> q, Rounding rounding, MatrixView<float> out) {
  // A piece is one token, or with few tokens some of its heads: every thread has work either way.
  const int64_t dim = shape.row.head_dim;
  const int64_t parts =
      q.rows < context.pool().threads() ? std::min<int64_t>(shape.heads, 4) : int64_t{1};
  context.pool().ParallelFor(q.rows * parts, 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t token = piece / parts;
      const int64_t part = piece % parts;
      const AttentionSequence& sequence = SequenceOf(sequences, token);
      const int64_t position = sequence.position + token - sequence.first;
      const int64_t keys = GatherKeys(shape, sequence, selection, token, position, scratch);
      for (int64_t h = part * shape.heads / parts; h < (part + 1) * shape.heads / parts; ++h) {
        AttendHead(shape, h, keys, q.row(token) + h * dim, rounding, scratch,
                   out.row(token) + h * dim);
      }
    }
  });
}

}  // namespace halfbyte
