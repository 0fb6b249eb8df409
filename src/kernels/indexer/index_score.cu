// Keys are the 64 rows of a product, heads its columns, so that a thread of a quad has heads 2 j
// and 2 j + 1 of each eight: lane j of indexer.h's sum. Decode: blocks share out the keys of a
// token. Prompts: a block keeps 384 keys in registers while the queries of some tokens come by.
#include "device/cuda/launch.cuh"
#include "kernels/indexer/index_keys.cuh"
#include "kernels/indexer/index_query.cuh"
#include "kernels/indexer/index_score_cuda.h"
#include "kernels/indexer/index_wgmma.cuh"
#include "kernels/indexer/ordered_score.h"
#include "kernels/sm90/sm90_ptx.cuh"

namespace halfbyte {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int32_t VisibleTo(const IndexScoreArguments& arguments, int64_t token) {
  return (arguments.tokens.positions[arguments.first + token] + 1) /
         static_cast<int32_t>(arguments.rate);
}
__device__ __forceinline__ const int32_t* TableOf(const DeviceSequences& sequences,
                                                  int32_t sequence) {
  return sequences.context_blocks + sequence * sequences.context_stride;
}

// A packed query in shared memory, aligned to 1024 bytes.
template <int kHeads>
struct QueryInShared {
  const std::byte* at;

  // Block b of heads from `head` on, a multiple of eight.
  __device__ __forceinline__ uint64_t Block(int b, int head = 0) const {
    return sm90::WgmmaDescriptor(sm90::SharedAddress(at) + 128 * head + 32 * b);
  }
  // Two numbers of neighbouring heads, 8 t + 2 j and the next: of row `row` behind the codes.
  __device__ __forceinline__ float2 Pair(int row, int t) const {
    const auto* numbers =
        reinterpret_cast<const float2*>(at + PackedQuery<kHeads>::kCodeBytes) + row * kHeads / 2;
    return numbers[4 * t + threadIdx.x % 4];
  }
};

// Adds heads [head, head + kCount) to lane j's sums of the two rows; value(i) is ReLU of the i-th
// number of wgmma's d.
template <int kCount, int kHeads, class Value>
__device__ __forceinline__ void AddHeads(const QueryInShared<kHeads>& query, int weights_row,
                                         int head, const Value& value, float (&sums)[2]) {
#pragma unroll
  for (int t = 0; t < kCount / 8; ++t) {
    const float2 weight = query.Pair(weights_row, head / 8 + t);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] = __fmaf_rn(weight.x, value(4 * t + 2 * r), sums[r]);
      sums[r] = __fmaf_rn(weight.y, value(4 * t + 2 * r + 1), sums[r]);
    }
  }
}
// (lane 0 + lane 2) + (lane 1 + lane 3), in all four.
__device__ __forceinline__ float AddLanes(float sum) {
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  return sum + __shfl_xor_sync(kAllLanes, sum, 1);
}

// The sums over all blocks, on their way.
template <int kHeads, int kDim>
__device__ __forceinline__ void JoinedProducts(const QueryInShared<kHeads>& query,
                                               const uint32_t (&a)[KeyTile<kDim>::kBlocks][4],
                                               int32_t (&d)[kHeads / 2]) {
  IndexWgmma<kHeads>::Begin(d, a[0], query.Block(0));
#pragma unroll
  for (int b = 1; b < KeyTile<kDim>::kBlocks; ++b) {
    IndexWgmma<kHeads>::Add(d, a[b], query.Block(b));
  }
  sm90::WgmmaCommit();
}

// From these.
template <int kHeads, int kDim>
__device__ __forceinline__ void JoinedScores(const QueryInShared<kHeads>& query,
                                             const KeyTile<kDim>& keys,
                                             const int32_t (&d)[kHeads / 2], float (&scores)[2]) {
  float sums[2] = {};
  // Below 1 after the division, so that saturation is ReLU.
  const auto relu = [&](int i) { return __saturatef(static_cast<float>(d[i]) * 0x1p-23f); };
  AddHeads<kHeads>(query, 0, 0, relu, sums);
#pragma unroll
  for (int r = 0; r < 2; ++r) scores[r] = AddLanes(sums[r]) * keys.JoinedScale(r);
}

// For any keys, block by block; some heads at a time, as registers are few.
template <int kHeads, int kDim>
__device__ __forceinline__ void BlockwiseScores(const QueryInShared<kHeads>& query,
                                                const KeyTile<kDim>& keys, float (&scores)[2]) {
  constexpr int kSome = kHeads < 16 ? kHeads : 16;
  float sums[2] = {};
#pragma unroll 1
  for (int head = 0; head < kHeads; head += kSome) {
    float dots[kSome / 2] = {};
#pragma unroll
    for (int b = 0; b < KeyTile<kDim>::kBlocks; ++b) {
      uint32_t a[4];
      int32_t d[kSome / 2];
      keys.Operand(b, /*joined=*/false, a);
      sm90::WgmmaFence();
      IndexWgmma<kSome>::Begin(d, a, query.Block(b, head));
      sm90::WgmmaCommit();
      sm90::WgmmaWait<0>();
#pragma unroll
      for (int t = 0; t < kSome / 8; ++t) {
        const float2 scale = query.Pair(b, head / 8 + t);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float of_key = keys.HalfScale(r, b);
          float* dot = dots + 4 * t + 2 * r;
          const int32_t* sum = d + 4 * t + 2 * r;
          dot[0] = __fmaf_rn(static_cast<float>(sum[0]), scale.x * of_key, dot[0]);
          dot[1] = __fmaf_rn(static_cast<float>(sum[1]), scale.y * of_key, dot[1]);
        }
      }
    }
    const auto relu = [&](int i) { return dots[i] < 0 ? 0.0f : dots[i]; };  // NaN stays
    AddHeads<kSome>(query, 4, head, relu, sums);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) scores[r] = AddLanes(sums[r]);
}

// Scores of a tile's rows that are below `visible`, by two threads of a quad.
__device__ __forceinline__ void StoreScores(const float (&scores)[2], int32_t first,
                                            int32_t visible, uint32_t* row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int r = lane % 4;
  const int32_t entry = first + 16 * warp + lane / 4 + 8 * r;
  if (r < 2 && entry < visible) row[entry] = OrderedScore(r == 0 ? scores[0] : scores[1]);
}

// --- A block for some keys of one token ---

constexpr int kFewThreads = 128;

template <int kHeads, int kDim>
__global__ void __launch_bounds__(kFewThreads) ScoreOneToken(const IndexScoreArguments arguments) {
  using Packed = PackedQuery<kHeads>;
  __shared__ alignas(1024) std::byte memory[Packed::kBlockwiseBytes];
  const int64_t token = blockIdx.y;
  const int32_t visible = VisibleTo(arguments, token);
  auto begin = static_cast<int32_t>(blockIdx.x) * kKeyTile;
  LetNextStart();
  if (visible <= arguments.skip || begin >= visible) {
    WaitForPrevious();
    return;
  }
  const int32_t sequence = arguments.tokens.sequences[arguments.first + token];
  const int32_t* table = TableOf(arguments.sequences, sequence);
  // Entries of earlier steps are there already.
  const int32_t stored =
      arguments.sequences.first_positions[sequence] / static_cast<int32_t>(arguments.rate);
  KeyTile<kDim> keys;
  bool loaded = begin + kKeyTile <= stored;
  if (loaded) keys.Load(arguments.keys, table, begin, visible);
  WaitForPrevious();
  const std::byte* packed = arguments.packed + token * Packed::kBytes;
  const auto stage = [&](int from, int bytes) {
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kFewThreads) {
      reinterpret_cast<uint4*>(memory)[i] = reinterpret_cast<const uint4*>(packed + from)[i];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before wgmma reads it
  };
  // Most often joined; then everything is on the way together.
  stage(Packed::kJoinedAt, Packed::kJoinedBytes);
  bool joined_staged = true;
  const bool query_joins = QueryJoins<kHeads>(packed);
  const QueryInShared<kHeads> query{memory};
  uint32_t* row = arguments.scores + token * arguments.stride;
  for (; begin < visible; begin += static_cast<int32_t>(gridDim.x) * kKeyTile) {
    if (!loaded) keys.Load(arguments.keys, table, begin, visible);
    loaded = false;
    const bool joined = sm90::Uniform(__syncthreads_and(query_joins && keys.Joins() ? 1 : 0)) != 0;
    if (joined != joined_staged) {
      stage(joined ? Packed::kJoinedAt : 0,
            joined ? Packed::kJoinedBytes : Packed::kBlockwiseBytes);
      joined_staged = joined;
      __syncthreads();
    }
    float scores[2];
    if (joined) {
      uint32_t a[KeyTile<kDim>::kBlocks][4];
      int32_t d[kHeads / 2];
#pragma unroll
      for (int b = 0; b < KeyTile<kDim>::kBlocks; ++b) keys.Operand(b, true, a[b]);
      sm90::WgmmaFence();
      JoinedProducts<kHeads, kDim>(query, a, d);
      sm90::WgmmaWait<0>();
      JoinedScores<kHeads, kDim>(query, keys, d, scores);
    } else {
      BlockwiseScores<kHeads, kDim>(query, keys, scores);
    }
    StoreScores(scores, begin, visible, row);
  }
}

// --- A block for 384 keys of some tokens ---

constexpr int kManyThreads = 384;
constexpr int kManyWarps = kManyThreads / 32;
constexpr int kTilesOfGroup = 2;
constexpr int kManyKeys = kManyThreads / 128 * kTilesOfGroup * kKeyTile;
constexpr int kManyTokens = 32;
constexpr int kStages = 4;

template <int kHeads>
constexpr int kStageBytes = (PackedQuery<kHeads>::kBlockwiseBytes + 1023) / 1024 * 1024;

struct Tokens {
  int32_t visible[kManyTokens];  // 0: nothing to score
  int32_t sequence[kManyTokens];
  int32_t joins[kManyTokens];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

// Queries of a block's tokens on their way through shared memory, one after the other. Thread 0
// sends for them.
template <int kHeads>
class QueryRing {
 public:
  __device__ __forceinline__ QueryRing(std::byte* memory, Tokens& tokens)
      : memory_(memory), tokens_(tokens) {}

  __device__ __forceinline__ void Init() {
    for (int s = 0; s < kStages; ++s) {
      sm90::BarrierInit(sm90::SharedAddress(tokens_.full + s), 1);
      sm90::BarrierInit(sm90::SharedAddress(tokens_.empty + s), kManyWarps);
    }
    sm90::BarrierInitFence();
  }
  // By thread 0: the place must have been left by all warps.
  __device__ __forceinline__ void Send(const std::byte* packed, bool joined) {
    using Packed = PackedQuery<kHeads>;
    const uint32_t stage = sent_ % kStages, round = sent_ / kStages;
    if (round > 0) sm90::BarrierWait(sm90::SharedAddress(tokens_.empty + stage), (round - 1) & 1);
    const uint32_t full = sm90::SharedAddress(tokens_.full + stage);
    const uint32_t bytes = joined ? Packed::kJoinedBytes : Packed::kBlockwiseBytes;
    sm90::BarrierArriveExpecting(full, bytes);
    sm90::BulkLoad(sm90::SharedAddress(memory_ + stage * kStageBytes<kHeads>),
                   packed + (joined ? Packed::kJoinedAt : 0), bytes, full);
    ++sent_;
  }
  __device__ __forceinline__ QueryInShared<kHeads> Wait() const {
    const uint32_t stage = used_ % kStages;
    sm90::BarrierWait(sm90::SharedAddress(tokens_.full + stage), used_ / kStages & 1);
    return {memory_ + stage * kStageBytes<kHeads>};
  }
  __device__ __forceinline__ void Leave() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      sm90::BarrierArrive(sm90::SharedAddress(tokens_.empty + used_ % kStages), 1);
    }
    ++used_;
  }

 private:
  std::byte* memory_;
  Tokens& tokens_;
  uint32_t sent_ = 0;
  uint32_t used_ = 0;
};

// Scores of this warpgroup's keys for one query.
template <int kHeads, int kDim>
__device__ __forceinline__ void ScoreTiles(
    const QueryInShared<kHeads>& query, const KeyTile<kDim> (&keys)[kTilesOfGroup],
    const uint32_t (&a)[kTilesOfGroup][KeyTile<kDim>::kBlocks][4], int32_t first, int32_t visible,
    uint32_t* row) {
  int32_t d[kTilesOfGroup][kHeads / 2];
  sm90::WgmmaFence();
#pragma unroll
  for (int tile = 0; tile < kTilesOfGroup; ++tile) {
    JoinedProducts<kHeads, kDim>(query, a[tile], d[tile]);
  }
  float scores[2];
  sm90::WgmmaWait<1>();
  JoinedScores<kHeads, kDim>(query, keys[0], d[0], scores);
  StoreScores(scores, first, visible, row);
  sm90::WgmmaWait<0>();
  JoinedScores<kHeads, kDim>(query, keys[1], d[1], scores);
  StoreScores(scores, first + kKeyTile, visible, row);
}

template <int kHeads, int kDim>
__global__ void __launch_bounds__(kManyThreads, 1)
    ScoreTokens(const IndexScoreArguments arguments) {
  using Packed = PackedQuery<kHeads>;
  extern __shared__ std::byte unaligned[];
  __shared__ Tokens tokens;
  std::byte* memory = unaligned + (1024 - sm90::SharedAddress(unaligned) % 1024) % 1024;
  QueryRing<kHeads> ring(memory, tokens);
  const int64_t first_token = int64_t{blockIdx.x} * kManyTokens;
  const auto first_key = static_cast<int32_t>(blockIdx.y) * kManyKeys;
  LetNextStart();
  WaitForPrevious();
  if (threadIdx.x < kManyTokens) {
    const int64_t token = first_token + threadIdx.x;
    int32_t visible = token < arguments.count ? VisibleTo(arguments, token) : 0;
    if (visible <= arguments.skip || visible <= first_key) visible = 0;
    tokens.visible[threadIdx.x] = visible;
    tokens.sequence[threadIdx.x] =
        visible > 0 ? arguments.tokens.sequences[arguments.first + token] : -1;
    tokens.joins[threadIdx.x] =
        visible > 0 && QueryJoins<kHeads>(arguments.packed + token * Packed::kBytes) ? 1 : 0;
  }
  if (threadIdx.x == 0) ring.Init();
  sm90::GlobalProxyFence();
  __syncthreads();
  const int32_t first =
      first_key + static_cast<int32_t>(threadIdx.x) / 128 * kTilesOfGroup * kKeyTile;
  // Neighbouring tokens of one sequence share the keys.
  for (int begin = 0, end = 0; begin < kManyTokens; begin = end) {
    const int sequence = sm90::Uniform(tokens.sequence[begin]);
    int most = 0;
    for (; end < kManyTokens && sm90::Uniform(tokens.sequence[end]) == sequence; ++end) {
      most = max(most, sm90::Uniform(tokens.visible[end]));
    }
    if (sequence < 0) continue;
    const int32_t* table = TableOf(arguments.sequences, sequence);
    KeyTile<kDim> keys[kTilesOfGroup];
    bool keys_join = true;
#pragma unroll
    for (int tile = 0; tile < kTilesOfGroup; ++tile) {
      keys[tile].Load(arguments.keys, table, first + tile * kKeyTile, most);
      keys_join = keys_join && keys[tile].Joins();
    }
    const int all_join = sm90::Uniform(__syncthreads_and(keys_join ? 1 : 0) != 0 ? 1 : 0);
    uint32_t a[kTilesOfGroup][KeyTile<kDim>::kBlocks][4];
#pragma unroll
    for (int tile = 0; tile < kTilesOfGroup; ++tile) {
#pragma unroll
      for (int b = 0; b < KeyTile<kDim>::kBlocks; ++b) {
        keys[tile].Operand(b, all_join != 0, a[tile][b]);
      }
    }
    int next = begin;
    const auto send = [&] {
      if (threadIdx.x == 0 && next < end) {
        ring.Send(arguments.packed + (first_token + next) * Packed::kBytes,
                  (all_join & tokens.joins[next]) != 0);
      }
      ++next;
      __syncwarp();
    };
    for (int i = 0; i < kStages - 1; ++i) send();
    for (int i = begin; i < end; ++i) {
      const QueryInShared<kHeads> query = ring.Wait();
      const int32_t visible = tokens.visible[i];
      uint32_t* row = arguments.scores + (first_token + i) * arguments.stride;
      if ((all_join & sm90::Uniform(tokens.joins[i])) != 0) {
        ScoreTiles<kHeads, kDim>(query, keys, a, first, visible, row);
      } else {
#pragma unroll 1
        for (int tile = 0; tile < kTilesOfGroup; ++tile) {
          // Rare, so that these codes do not stay in registers.
          KeyTile<kDim> again;
          again.Load(arguments.keys, table, first + tile * kKeyTile, most);
          float scores[2];
          BlockwiseScores<kHeads, kDim>(query, again, scores);
          StoreScores(scores, first + tile * kKeyTile, visible, row);
        }
      }
      ring.Leave();
      send();
    }
  }
}

// --- Launch ---

constexpr int64_t kFewTokens = 128;
constexpr int64_t kFewBlocks = 528;  // four for each multiprocessor

}  // namespace

cudaError_t LaunchIndexScores(const IndexScoreArguments& arguments, cudaStream_t stream) {
  return LaunchForShape(arguments.heads, arguments.dim, [&]<int kHeads, int kDim>() {
    if (arguments.count == 0 || arguments.max_entries == 0) return cudaSuccess;
    if (arguments.count <= kFewTokens) {
      const int64_t tiles = (arguments.max_entries + kKeyTile - 1) / kKeyTile;
      const int64_t share = (kFewBlocks + arguments.count - 1) / arguments.count;
      const dim3 grid(static_cast<unsigned>(tiles < share ? tiles : share),
                      static_cast<unsigned>(arguments.count));
      return LaunchDependent(ScoreOneToken<kHeads, kDim>, {grid, kFewThreads}, stream, arguments);
    }
    const int64_t blocks = (arguments.count + kManyTokens - 1) / kManyTokens;
    const int64_t parts = (arguments.max_entries + kManyKeys - 1) / kManyKeys;
    const LaunchShape shape{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts)),
                            kManyThreads, kStages * size_t{kStageBytes<kHeads>} + 1024};
    return LaunchDependent(ScoreTokens<kHeads, kDim>, shape, stream, arguments);
  });
}

}  // namespace halfbyte
