#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "device/arena.h"
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

// How decoded rows are kept, and what attends to them.
struct Variant {
  int64_t row_bytes = 0;
  void (*decode)(const KvRow& layout, std::span<const std::byte* const> stored, std::byte* rows);
  void (*attend)(const HeadArguments& arguments);
};

// The last 64 bytes are room between rows: a power of two between them would crowd the same
// channels of all rows into a few sets of the first-level cache.
int64_t Fp32RowBytes(const KvRow& layout) { return RoundUp(layout.head_dim, 16) * 4 + 64; }

void DecodeFp32(const KvRow& layout, std::span<const std::byte* const> stored, std::byte* rows) {
  const int64_t bytes = Fp32RowBytes(layout);
  for (const std::byte* row : stored) {
    std::memset(rows + bytes - 128, 0, 64);  // behind the last number
    DecodeKvRow(layout, row, reinterpret_cast<float*>(rows));
    rows += bytes;
  }
}

void DecodePairs(const KvRow& layout, std::span<const std::byte* const> stored, std::byte* rows) {
  simd_avx512::DecodeKvRowPairs(layout, stored.data(), std::ssize(stored),
                                reinterpret_cast<uint32_t*>(rows));
}

Variant ChooseVariant(CpuIsa isa, const KvRow& row, Rounding rounding) {
  const bool fits = rounding == Rounding::kBf16 && row.format == KvFormat::kFp8 &&
                    row.head_dim % 32 == 0 && row.rope_dim % 32 == 0;
  switch (isa) {
    case CpuIsa::kScalar:
      return {Fp32RowBytes(row), DecodeFp32, simd_scalar::AttendHeads};
    case CpuIsa::kAvx2:
      return {Fp32RowBytes(row), DecodeFp32, simd_avx2::AttendHeads};
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      // Same bits, so it is a matter of speed: Intel's vdpbf16ps is slower than its two fp32 units.
      if (fits && __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_is("intel")) {
        return {row.head_dim * 2, DecodePairs, simd_avx512::AttendHeadsBf16};
      }
      return {Fp32RowBytes(row), DecodeFp32, simd_avx512::AttendHeads};
  }
  HB_CHECK(false, "instruction set {}", static_cast<int>(isa));
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

// The decoded rows of a piece.
class PieceRows {
 public:
  PieceRows(const Variant& variant, const KvRow& layout, Arena& arena)
      : variant_(variant), layout_(layout), arena_(arena), zeros_(Take(1)) {
    std::memset(zeros_, 0, static_cast<size_t>(variant.row_bytes));
  }

  // Decodes rows [first, first + count), page by page.
  const std::byte* Decode(const PagedRows& rows, int64_t first, int64_t count) {
    auto** stored = arena_.Take<const std::byte*>(count);
    for (int64_t i = 0; i < count;) {
      const std::byte* row = rows.row(first + i);
      const int64_t left = rows.rows_per_page - (first + i) % rows.rows_per_page;
      for (const int64_t end = std::min(count, i + left); i < end; row += rows.row_bytes) {
        stored[i++] = row;
      }
    }
    return Decode({stored, static_cast<size_t>(count)});
  }
  // Decodes the rows that `ids` names.
  const std::byte* Decode(const PagedRows& rows, std::span<const int32_t> ids) {
    auto** stored = arena_.Take<const std::byte*>(std::ssize(ids));
    for (size_t i = 0; i < ids.size(); ++i) stored[i] = rows.row(ids[i]);
    return Decode({stored, ids.size()});
  }

  // The keys of one token, as HeadArguments has them.
  const std::byte* const* Keys(const std::byte* window, int64_t window_count,
                               const std::byte* entries, int64_t entry_count) {
    const int64_t count = window_count + entry_count;
    auto** keys = arena_.Take<const std::byte*>(RoundUp(count, 4));
    for (int64_t i = 0; i < window_count; ++i) keys[i] = window + i * variant_.row_bytes;
    for (int64_t i = 0; i < entry_count; ++i) {
      keys[window_count + i] = entries + i * variant_.row_bytes;
    }
    for (int64_t i = count; i < RoundUp(count, 4); ++i) keys[i] = zeros_;
    return keys;
  }

 private:
  const std::byte* Decode(std::span<const std::byte* const> stored) {
    std::byte* decoded = Take(std::ssize(stored));
    variant_.decode(layout_, stored, decoded);
    return decoded;
  }
  std::byte* Take(int64_t rows) { return arena_.Take<std::byte>(rows * variant_.row_bytes); }

  const Variant& variant_;
  const KvRow& layout_;
  Arena& arena_;
  std::byte* zeros_;
};

// Whether each token of a piece attends to all entries that it may see.
bool SeesAll(const AttentionShape& shape, const EntrySelection& selection, const Piece& piece,
             int64_t first_position) {
  for (int64_t i = 0; i < piece.count && selection.indices != nullptr; ++i) {
    const int64_t visible = VisibleEntries(first_position + i, shape.rate);
    if (selection.counts[piece.first + i] != visible) return false;
  }
  return true;
}

// The first window row that the query at `position` sees.
int64_t WindowBegin(const AttentionShape& shape, const AttentionSequence& sequence,
                    int64_t position) {
  return std::max(sequence.window_start, position - shape.window + 1);
}

void AttendPiece(const Variant& variant, const AttentionShape& shape,
                 const EntrySelection& selection, const Piece& piece, MatrixView<const float> q,
                 Rounding rounding, Arena& arena, MatrixView<float> out) {
  const Arena::Scope scope(arena);
  const AttentionSequence& sequence = *piece.sequence;
  const int64_t dim = shape.row.head_dim;
  const int64_t first_position = sequence.position + piece.first - sequence.first;
  const int64_t end_position = first_position + piece.count;
  const int64_t window_begin = WindowBegin(shape, sequence, first_position);
  PieceRows rows(variant, shape.row, arena);
  const std::byte* window = rows.Decode(sequence.window, window_begin, end_position - window_begin);
  // Then each token takes a prefix of what the last one sees.
  const bool shared = SeesAll(shape, selection, piece, first_position);
  const std::byte* entries = nullptr;
  if (shared) {
    entries = rows.Decode(sequence.compressed, 0, VisibleEntries(end_position - 1, shape.rate));
  }
  for (int64_t i = 0; i < piece.count; ++i) {
    const Arena::Scope of_token(arena);
    const int64_t token = piece.first + i;
    const int64_t position = first_position + i;
    const int64_t begin = WindowBegin(shape, sequence, position);
    const int64_t entry_count =
        shared ? VisibleEntries(position, shape.rate) : selection.counts[token];
    if (!shared) {
      entries = rows.Decode(sequence.compressed, {selection.indices + token * selection.stride,
                                                  static_cast<size_t>(entry_count)});
    }
    HeadArguments arguments{.heads = piece.head_end - piece.head_begin,
                            .q = q.row(token) + piece.head_begin * dim,
                            .keys = rows.Keys(window + (begin - window_begin) * variant.row_bytes,
                                              position + 1 - begin, entries, entry_count),
                            .key_count = position + 1 - begin + entry_count,
                            .dim = dim,
                            .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                            .sinks = shape.sinks + piece.head_begin,
                            .round_to_bf16 = rounding == Rounding::kBf16,
                            .out = out.row(token) + piece.head_begin * dim};
    arguments.q_rows = arena.Take<float>(arguments.heads * RoundUp(dim, 16));
    arguments.scores = arena.Take<float>(arguments.heads * arguments.score_stride());
    arguments.shares = arena.Take<float>(arguments.heads);
    arguments.totals = arena.Take<float>(arguments.heads * RoundUp(dim, 64));
    variant.attend(arguments);
  }
}

}  // namespace

void Attention(const Context& context, const AttentionShape& shape,
               std::span<const AttentionSequence> sequences, const EntrySelection& selection,
               MatrixView<const float> q, Rounding rounding, MatrixView<float> out) {
  const Variant variant = ChooseVariant(context.isa(), shape.row, rounding);
  const std::vector<Piece> pieces =
      CutIntoPieces(sequences, shape.heads, q.rows, context.pool().threads());
  context.pool().ParallelFor(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    static thread_local Arena arena;  // kept between calls, so that decode does not allocate
    for (int64_t i = begin; i < end; ++i) {
      AttendPiece(variant, shape, selection, pieces[static_cast<size_t>(i)], q, rounding, arena,
                  out);
    }
  });
}

}  // namespace halfbyte
