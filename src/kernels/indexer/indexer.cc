#include "kernels/indexer/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "device/arena.h"
#include "kernels/indexer/index_pack.h"
#include "kernels/indexer/index_score.h"
#include "kernels/indexer/top_k.h"
#include "kernels/row_math.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// Some tokens of one sequence and some of the entries that the last of them sees.
struct Piece {
  const IndexerSequence* sequence = nullptr;
  int64_t token = 0;  // batch tokens [token, token + count)
  int64_t count = 0;
  int64_t begin = 0;  // entries, a multiple of kScoreTile
  int64_t end = 0;
};

// Large enough that packing keys is little beside scoring them, and that threads rarely meet.
constexpr int64_t kTokensPerPiece = 64;
constexpr int64_t kEntriesPerPiece = 16 * kScoreTile;
// Scores that are kept at a time, unless those of one token are more: 8 MiB.
constexpr int64_t kMostScores = int64_t{1} << 21;

// What the i-th token of a sequence sees.
int64_t VisibleTo(const Indexer& indexer, const IndexerSequence& sequence, int64_t i) {
  return (sequence.position + i + 1) / indexer.rate;
}

std::vector<Piece> CutIntoPieces(const Indexer& indexer,
                                 std::span<const IndexerSequence> sequences) {
  std::vector<Piece> pieces;
  for (const IndexerSequence& sequence : sequences) {
    for (int64_t i = 0; i < sequence.count; i += kTokensPerPiece) {
      const int64_t count = std::min(kTokensPerPiece, sequence.count - i);
      const int64_t visible = VisibleTo(indexer, sequence, i + count - 1);
      for (int64_t begin = 0; begin < visible; begin += kEntriesPerPiece) {
        pieces.push_back({&sequence, sequence.first + i, count, begin,
                          std::min(visible, begin + kEntriesPerPiece)});
      }
    }
  }
  return pieces;
}

using ScoreTileFunction = void (*)(const IndexQueryPack&, const IndexKeyTile&, float*);

ScoreTileFunction ChooseScoreTile(CpuIsa isa) {
  const bool vnni = isa >= CpuIsa::kAvx512 && __builtin_cpu_supports("avx512vnni");
  return vnni ? simd_avx512::ScoreTileVnni : simd_avx2::ScoreTile;
}

void ScorePiece(const Indexer& indexer, const Piece& piece, const IndexQueryPacks& queries,
                ScoreTileFunction score_tile, MatrixView<float> scores) {
  for (int64_t begin = piece.begin; begin < piece.end; begin += kScoreTile) {
    const IndexKeyPack keys(indexer.row, piece.sequence->keys, begin,
                            std::min(kScoreTile, piece.end - begin));
    for (int64_t token = piece.token; token < piece.token + piece.count; ++token) {
      score_tile(queries.of(token), keys.tile(), scores.row(token) + begin);
    }
  }
}

// The same with keys of fp32, for which speed does not matter.
void ScoreFp32Piece(const Indexer& indexer, const Piece& piece, MatrixView<const float> q,
                    MatrixView<const float> weights, MatrixView<float> scores) {
  const int64_t dim = indexer.row.dim;
  std::vector<float> key(static_cast<size_t>(dim));
  for (int64_t t = piece.begin; t < piece.end; ++t) {
    DecodeIndexRow(indexer.row, piece.sequence->keys.row(t), key.data());
    for (int64_t token = piece.token; token < piece.token + piece.count; ++token) {
      float lanes[4] = {};
      for (int64_t h = 0; h < indexer.heads; ++h) {
        const float dot = Dot(q.row(token) + h * dim, key.data(), dim);
        float& lane = lanes[h % 8 / 2];
        lane = std::fma(weights.row(token)[h], dot < 0 ? 0.0f : dot, lane);  // NaN stays
      }
      scores.row(token)[t] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    }
  }
}

// TopK for scores without a rule for ties, in the steps of torch.topk: (score, id) pairs of all
// entries, compared by score alone, through std::partial_sort for few or std::nth_element for many.
void TopKAsReference(std::span<const float> scores, int64_t keep, int64_t entries,
                     int32_t* indices) {
  using Entry = std::pair<float, int32_t>;
  constexpr float kLast = -std::numeric_limits<float>::infinity();
  std::vector<Entry> all(static_cast<size_t>(entries));
  for (int64_t i = 0; i < entries; ++i) {
    const float score = i < std::ssize(scores) ? scores[static_cast<size_t>(i)] : kLast;
    all[static_cast<size_t>(i)] = {std::isnan(score) ? kLast : score, static_cast<int32_t>(i)};
  }
  const auto better = [](const Entry& a, const Entry& b) { return a.first > b.first; };
  if (keep * 64 <= entries) {
    std::partial_sort(all.begin(), all.begin() + keep, all.end(), better);
  } else {
    std::nth_element(all.begin(), all.begin() + keep - 1, all.end(), better);
  }
  for (int64_t i = 0; i < keep; ++i) indices[i] = all[static_cast<size_t>(i)].second;
  std::sort(indices, indices + keep);
}

// Tokens that see no more than they may choose choose all of it. Returns the other parts of the
// sequences.
std::vector<IndexerSequence> ChooseAllOfFew(const Indexer& indexer,
                                            std::span<const IndexerSequence> sequences,
                                            MatrixView<int32_t> indices, int32_t* counts) {
  std::vector<IndexerSequence> others;
  for (const IndexerSequence& sequence : sequences) {
    int64_t i = 0;
    for (; i < sequence.count && VisibleTo(indexer, sequence, i) <= indexer.top_k; ++i) {
      const int64_t token = sequence.first + i;
      const int64_t visible = VisibleTo(indexer, sequence, i);
      int32_t* ids = indices.row(token);
      std::iota(ids, ids + visible, 0);
      std::fill(ids + visible, ids + indices.columns, -1);
      counts[token] = static_cast<int32_t>(visible);
    }
    if (i == sequence.count) continue;
    IndexerSequence& other = others.emplace_back(sequence);
    other.first += i;
    other.count -= i;
    other.position += i;
  }
  return others;
}

// Enough for each row of IndexScores.
int64_t ScoreColumns(const Indexer& indexer, std::span<const IndexerSequence> sequences) {
  int64_t most = 0;
  for (const IndexerSequence& sequence : sequences) {
    most = std::max(most, VisibleTo(indexer, sequence, sequence.count - 1));
  }
  return RoundUp(most, kScoreTile);
}

Arena& ThreadsArena() {
  static thread_local Arena arena;  // kept between calls, so that decode does not allocate
  return arena;
}

}  // namespace

void IndexScores(const Context& context, const Indexer& indexer,
                 std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                 MatrixView<const float> weights, MatrixView<float> scores) {
  const std::vector<Piece> pieces = CutIntoPieces(indexer, sequences);
  const auto for_each_piece = [&](const auto& body) {
    context.pool().ParallelFor(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(pieces[static_cast<size_t>(i)]);
    });
  };
  if (indexer.row.format == IndexFormat::kF32) {
    for_each_piece([&](const Piece& piece) { ScoreFp32Piece(indexer, piece, q, weights, scores); });
    return;
  }
  if (context.isa() == CpuIsa::kScalar) {
    IndexScoresReference(indexer, sequences, q, weights, scores);
    return;
  }
  Arena& arena = ThreadsArena();
  const Arena::Scope scope(arena);
  IndexQueryPacks queries(indexer, q.rows, arena);
  context.pool().ParallelFor(
      CountTokens(sequences), RowsPerPiece(q.columns), [&](int64_t begin, int64_t end) {
        ForTokens(sequences, begin, end, [&](const IndexerSequence& sequence, int64_t i) {
          const int64_t token = sequence.first + i;
          queries.Pack(token, q.row(token), weights.row(token));
        });
      });
  const ScoreTileFunction score_tile = ChooseScoreTile(context.isa());
  for_each_piece(
      [&](const Piece& piece) { ScorePiece(indexer, piece, queries, score_tile, scores); });
}

void SelectEntries(const Context& context, const Indexer& indexer,
                   std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                   MatrixView<const float> weights, MatrixView<int32_t> indices, int32_t* counts) {
  const std::vector<IndexerSequence> choosing = ChooseAllOfFew(indexer, sequences, indices, counts);
  const int64_t columns = ScoreColumns(indexer, choosing);
  const int64_t most_tokens = std::max<int64_t>(1, kMostScores / std::max<int64_t>(1, columns));
  for (int64_t first = 0; first < q.rows; first += most_tokens) {
    const int64_t tokens = std::min(most_tokens, q.rows - first);
    std::vector<IndexerSequence> parts = Within<IndexerSequence>(choosing, first, tokens);
    if (parts.empty()) continue;
    for (IndexerSequence& part : parts) part.first -= first;
    Arena& arena = ThreadsArena();
    const Arena::Scope scope(arena);
    const MatrixView<float> scores = arena.Matrix(tokens, columns);
    const MatrixView<uint32_t> scratch = arena.Matrix<uint32_t>(tokens, columns);
    IndexScores(context, indexer, parts, q.Rows(first, tokens), weights.Rows(first, tokens),
                scores);
    context.pool().ParallelFor(
        CountTokens<IndexerSequence>(parts), 1, [&](int64_t begin, int64_t end) {
          ForTokens<IndexerSequence>(
              parts, begin, end, [&](const IndexerSequence& part, int64_t i) {
                const int64_t row = part.first + i;
                const int64_t keep = indexer.top_k;
                const std::span<const float> of_token(
                    scores.row(row), static_cast<size_t>(VisibleTo(indexer, part, i)));
                int32_t* ids = indices.row(first + row);
                if (indexer.reference_entries > 0) {
                  TopKAsReference(of_token, keep, indexer.reference_entries, ids);
                } else {
                  TopK(of_token, keep, scratch.row(row), ids);
                }
                std::fill(ids + keep, ids + indices.columns, -1);
                counts[first + row] = static_cast<int32_t>(keep);
              });
        });
  }
}

}  // namespace halfbyte
