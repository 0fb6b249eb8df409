#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention_simd.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// Neighbouring tokens share most of their window: a piece of this many decodes it once.
constexpr int64_t kTokensPerPiece = 8;

// Some tokens of one sequence and some heads.
struct Piece {
  const AttentionSequence* sequence = nullptr;
  int64_t first = 0;  // batch tokens [first, first + count)
  int64_t count = 0;
  int64_t head_begin = 0;
  int64_t head_end = 0;
};

// One thread's decoded rows and scores, kept between calls so that decode does not allocate.
struct Scratch {
  std::vector<float> window;
  std::vector<float> entries;
  std::vector<float> scores;
};

float* Ensure(std::vector<float>& buffer, int64_t size) {
  if (std::ssize(buffer) < size) buffer.resize(static_cast<size_t>(size));
  return buffer.data();
}

std::vector<Piece> CutIntoPieces(std::span<const AttentionSequence> sequences, int64_t heads,
                                 int64_t tokens, int threads) {
  // With few tokens a piece has only some of the heads: every thread has work either way.
  const int64_t parts = tokens < threads ? std::min<int64_t>(heads, threads) : int64_t{1};
  std::vector<Piece> pieces;
  for (const AttentionSequence& sequence : sequences) {
    for (int64_t i = 0; i < sequence.count; i += kTokensPerPiece) {
      for (int64_t part = 0; part < parts; ++part) {
        pieces.push_back({&sequence, sequence.first + i,
                          std::min(kTokensPerPiece, sequence.count - i), part * heads / parts,
                          (part + 1) * heads / parts});
      }
    }
  }
  return pieces;
}

// Which entries the tokens of a piece attend to.
class PieceEntries {
 public:
  PieceEntries(const AttentionShape& shape, const EntrySelection& selection, const Piece& piece,
               Scratch& scratch)
      : shape_(shape), selection_(selection), sequence_(*piece.sequence), scratch_(scratch) {
    bool all = true;
    for (int64_t t = piece.first; t < piece.first + piece.count; ++t) {
      all = all && (selection.indices == nullptr || selection.counts[t] == Visible(t));
    }
    if (!all) return;
    shared_ = true;  // each token takes a prefix of what the last one sees
    Decode(Visible(piece.first + piece.count - 1), nullptr);
  }

  // The rows of one token; valid until the next call.
  MatrixView<const float> Of(int64_t token) {
    const int64_t count = shared_ ? Visible(token) : selection_.counts[token];
    if (!shared_) Decode(count, selection_.indices + token * selection_.stride);
    return {scratch_.entries.data(), count, shape_.row.head_dim};
  }

 private:
  int64_t Visible(int64_t token) const {
    return VisibleEntries(sequence_.position + token - sequence_.first, shape_.rate);
  }
  void Decode(int64_t count, const int32_t* indices) {
    const int64_t dim = shape_.row.head_dim;
    float* rows = Ensure(scratch_.entries, count * dim);
    for (int64_t j = 0; j < count; ++j) {
      DecodeKvRow(shape_.row, sequence_.compressed.row(indices != nullptr ? indices[j] : j),
                  rows + j * dim);
    }
  }

  const AttentionShape& shape_;
  const EntrySelection& selection_;
  const AttentionSequence& sequence_;
  Scratch& scratch_;
  bool shared_ = false;
};

void AttendHeads(CpuIsa isa, const HeadArguments& arguments) {
  switch (isa) {
    case CpuIsa::kScalar:
      return simd_scalar::AttendHeads(arguments);
    case CpuIsa::kAvx2:
      return simd_avx2::AttendHeads(arguments);
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return simd_avx512::AttendHeads(arguments);
  }
}

void AttendPiece(CpuIsa isa, const AttentionShape& shape, const EntrySelection& selection,
                 const Piece& piece, MatrixView<const float> q, Rounding rounding, Scratch& scratch,
                 MatrixView<float> out) {
  const AttentionSequence& sequence = *piece.sequence;
  const int64_t dim = shape.row.head_dim;
  const int64_t first_position = sequence.position + piece.first - sequence.first;
  const int64_t last_position = first_position + piece.count - 1;
  const int64_t window_begin = std::max<int64_t>(0, first_position - shape.window + 1);
  float* window = Ensure(scratch.window, (last_position + 1 - window_begin) * dim);
  for (int64_t p = window_begin; p <= last_position; ++p) {
    DecodeKvRow(shape.row, sequence.window.row(p), window + (p - window_begin) * dim);
  }
  PieceEntries piece_entries(shape, selection, piece, scratch);
  for (int64_t i = 0; i < piece.count; ++i) {
    const int64_t token = piece.first + i;
    const int64_t position = first_position + i;
    const int64_t begin = std::max<int64_t>(0, position - shape.window + 1);
    const MatrixView<const float> entries = piece_entries.Of(token);
    const int64_t heads = piece.head_end - piece.head_begin;
    const int64_t window_count = position + 1 - begin;
    const int64_t score_stride = RoundUp(window_count + entries.rows, 16);
    AttendHeads(isa, {.heads = heads,
                      .q = q.row(token) + piece.head_begin * dim,
                      .window = window + (begin - window_begin) * dim,
                      .window_count = window_count,
                      .entries = entries.data,
                      .entry_count = entries.rows,
                      .dim = dim,
                      .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                      .sinks = shape.sinks + piece.head_begin,
                      .round_to_bf16 = rounding == Rounding::kBf16,
                      .score_stride = score_stride,
                      .scores = Ensure(scratch.scores, heads * score_stride),
                      .out = out.row(token) + piece.head_begin * dim});
  }
}

}  // namespace

void Attention(const Context& context, const AttentionShape& shape,
               std::span<const AttentionSequence> sequences, const EntrySelection& selection,
               MatrixView<const float> q, Rounding rounding, MatrixView<float> out) {
  const std::vector<Piece> pieces =
      CutIntoPieces(sequences, shape.heads, q.rows, context.pool().threads());
  context.pool().ParallelFor(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      AttendPiece(context.isa(), shape, selection, pieces[static_cast<size_t>(i)], q, rounding,
                  scratch, out);
    }
  });
}

}  // namespace halfbyte
