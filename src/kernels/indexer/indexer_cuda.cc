#include "kernels/indexer/indexer_cuda.h"

#include <algorithm>

#include "kernels/indexer/index_score_cuda.h"
#include "kernels/indexer/top_k_cuda.h"

namespace halfbyte {
namespace {

constexpr int64_t kScoresOfTile = int64_t{1} << 24;
constexpr int64_t kMostTokensOfTile = 2048;

constexpr int64_t Align(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

int64_t Stride(int64_t max_entries) { return Align(max_entries, 32); }
int64_t PackedBytes(int64_t tokens, int64_t heads) {
  return Align(tokens * PackedIndexQueryBytes(heads), 256);
}

// How many of `all` tokens are scored together.
int64_t TokensOfTile(int64_t all, int64_t stride) {
  return std::clamp<int64_t>(kScoresOfTile / std::max<int64_t>(stride, 1), 1,
                             std::clamp<int64_t>(all, 1, kMostTokensOfTile));
}

}  // namespace

int64_t SelectScratchBytes(int64_t tokens, int64_t heads, int64_t max_entries) {
  // No less than any smaller sizes take.
  const int64_t most = std::min(tokens, kMostTokensOfTile), stride = Stride(max_entries);
  const int64_t scores = std::min(most * stride, std::max(kScoresOfTile, stride));
  return PackedBytes(most, heads) + scores * int64_t{sizeof(uint32_t)};
}

cudaError_t LaunchSelect(const SelectArguments& arguments, cudaStream_t stream) {
  if (arguments.rate < 1 || arguments.top_k < 1) return cudaErrorInvalidValue;
  const int64_t stride = Stride(arguments.max_entries);
  const int64_t tile = TokensOfTile(arguments.tokens.count, stride);
  auto* scores =
      reinterpret_cast<uint32_t*>(arguments.scratch + PackedBytes(tile, arguments.heads));
  for (int64_t first = 0; first < arguments.tokens.count; first += tile) {
    const int64_t count = std::min(tile, arguments.tokens.count - first);
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
                                     .stride = stride};
    const cudaError_t packed = LaunchPackIndexQueries(scored, stream);
    if (packed != cudaSuccess) return packed;
    const cudaError_t done = LaunchIndexScores(scored, stream);
    if (done != cudaSuccess) return done;
    const cudaError_t chosen = LaunchTopK({.positions = arguments.tokens.positions + first,
                                           .tokens = count,
                                           .rate = arguments.rate,
                                           .top_k = arguments.top_k,
                                           .scores = scores,
                                           .stride = stride,
                                           .selected = arguments.selected + first * arguments.top_k,
                                           .counts = arguments.counts + first},
                                          stream);
    if (chosen != cudaSuccess) return chosen;
  }
  return cudaSuccess;
}

}  // namespace halfbyte
