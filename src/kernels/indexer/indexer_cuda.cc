#include "kernels/indexer/indexer_cuda.h"

#include <algorithm>

#include "kernels/indexer/index_score_cuda.h"
#include "kernels/indexer/top_k_cuda.h"

namespace halfbyte {
namespace {

constexpr int64_t kScoresOfTile = int64_t{1} << 24;
constexpr int64_t kTokensOfTile = 2048;

constexpr int64_t Align(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// Tokens that are scored together, and where that goes.
struct Tile {
  int64_t stride;  // of scores
  int64_t tokens;
  int64_t scores_at;  // bytes; packed queries come before
  int64_t bytes;

  Tile(int64_t all, int64_t heads, int64_t max_entries)
      : stride(Align(max_entries, 32)),
        tokens(std::clamp<int64_t>(kScoresOfTile / std::max<int64_t>(stride, 1), 1,
                                   std::clamp<int64_t>(all, 1, kTokensOfTile))),
        scores_at(Align(tokens * PackedIndexQueryBytes(heads), 256)),
        bytes(scores_at + tokens * stride * int64_t{sizeof(uint32_t)}) {}
};

}  // namespace

int64_t SelectScratchBytes(int64_t tokens, int64_t heads, int64_t max_entries) {
  return Tile(tokens, heads, max_entries).bytes;
}

cudaError_t LaunchSelect(const SelectArguments& arguments, cudaStream_t stream) {
  if (arguments.rate < 1 || arguments.top_k < 1) return cudaErrorInvalidValue;
  const Tile tile(arguments.tokens.count, arguments.heads, arguments.max_entries);
  auto* scores = reinterpret_cast<uint32_t*>(arguments.scratch + tile.scores_at);
  for (int64_t first = 0; first < arguments.tokens.count; first += tile.tokens) {
    const int64_t count = std::min(tile.tokens, arguments.tokens.count - first);
    // Where nobody can see more than may be chosen, nobody is scored.
    const IndexScoreArguments scored{.tokens = arguments.tokens,
                                     .first = first,
                                     .count = arguments.max_entries > arguments.top_k ? count : 0,
                                     .sequences = arguments.sequences,
                                     .rope = arguments.rope,
                                     .queries = arguments.queries,
                                     .weights = arguments.weights,
                                     .weight_factor = arguments.weight_factor,
                                     .heads = arguments.heads,
                                     .dim = arguments.dim,
                                     .rate = arguments.rate,
                                     .skip = arguments.top_k,
                                     .max_entries = arguments.max_entries,
                                     .keys = arguments.keys,
                                     .packed = arguments.scratch,
                                     .scores = scores,
                                     .stride = tile.stride};
    const cudaError_t packed = LaunchPackIndexQueries(scored, stream);
    if (packed != cudaSuccess) return packed;
    const cudaError_t done = LaunchIndexScores(scored, stream);
    if (done != cudaSuccess) return done;
    const cudaError_t chosen = LaunchTopK({.positions = arguments.tokens.positions + first,
                                           .tokens = count,
                                           .rate = arguments.rate,
                                           .top_k = arguments.top_k,
                                           .scores = scores,
                                           .stride = tile.stride,
                                           .selected = arguments.selected + first * arguments.top_k,
                                           .counts = arguments.counts + first},
                                          stream);
    if (chosen != cudaSuccess) return chosen;
  }
  return cudaSuccess;
}

}  // namespace halfbyte
