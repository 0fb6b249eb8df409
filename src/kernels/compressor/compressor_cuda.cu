// Entries first, for a group may begin in the ring; then the rings. A block for a token: the last
// of a group makes its entry.
#include "device/cuda/launch.cuh"
#include "kernels/compressor/compressor_cuda.h"
#include "kernels/kv_row/kv_row_encode.cuh"
#include "kernels/row_math.cuh"

namespace halfbyte {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostDim = 1024;

__host__ __device__ int64_t Channels(const CompressArguments& a) {
  return a.overlap ? 2 * a.dim : a.dim;
}

struct TokenPlace {
  int32_t position, sequence, first_position, first_row;
};

__device__ TokenPlace PlaceOf(const CompressArguments& a, int64_t token) {
  const int32_t position = a.tokens.positions[token];
  if (position < 0) return {-1, 0, 0, 0};
  const int32_t sequence = a.tokens.sequences[token];
  return {position, sequence, a.sequences.first_positions[sequence],
          a.sequences.first_rows[sequence]};
}

__device__ float* RingRow(const CompressArguments& a, const TokenPlace& at, int64_t position) {
  return a.rings + a.sequences.slots[at.sequence] * a.slot_stride +
         position % a.ring_rows * 2 * Channels(a);
}

// One channel of the entry whose group ends at the token.
__device__ float Pool(const CompressArguments& a, const TokenPlace& at, int channel) {
  const int64_t channels = Channels(a), own = at.position + 1 - a.rate;
  const int64_t begin = a.overlap ? max(int64_t{0}, own - a.rate) : own;
  // kv and score of a row; the ring's scores have their bias.
  const auto row = [&](int64_t p, float& kv) {
    const int64_t c = channel + (a.overlap && p >= own ? a.dim : 0);
    if (p < at.first_position) {
      const float* const slot = RingRow(a, at, p);
      kv = slot[c];
      return slot[channels + c];
    }
    const int64_t token = at.first_row + p - at.first_position;
    kv = a.kv[token * channels + c];
    return a.score[token * channels + c] + a.position_bias[p % a.rate * channels + c];
  };
  float largest = __int_as_float(0xff800000), kv = 0;
  for (int64_t p = begin; p <= at.position; ++p) {
    const float score = row(p, kv);
    largest = score > largest ? score : largest;
  }
  float sum = 0, weighted = 0;
  for (int64_t p = begin; p <= at.position; ++p) {
    const float weight = Exp16(row(p, kv) - largest);
    sum = sum + weight;
    weighted = __fmaf_rn(weight, kv, weighted);
  }
  return weighted / sum;
}

__global__ void __launch_bounds__(kThreads) MakeEntries(const CompressArguments a) {
  extern __shared__ float x[];  // [dim], then sums of its segments
  WaitForPrevious();
  LetNextStart();
  const TokenPlace at = PlaceOf(a, blockIdx.x);
  if (at.position < 0 || (at.position + 1) % a.rate != 0) return;
  const int64_t entry = at.position / a.rate;
  if (entry < a.sequences.replay_ends[at.sequence] / a.rate) return;
  const int dim = static_cast<int>(a.dim), thread = static_cast<int>(threadIdx.x);
  for (int c = thread; c < dim; c += kThreads) x[c] = RoundToBf16(Pool(a, at, c));
  __syncthreads();
  const float factor = NormFactor(x, dim, a.eps, x + dim);
  for (int c = thread; c < dim; c += kThreads) x[c] = RoundToBf16(a.norm[c] * (x[c] * factor));
  __syncthreads();
  const int pairs = static_cast<int>(a.rope.pairs);
  const int64_t angles = entry * a.rate * pairs;
  RotateTail(x, dim, a.rope.cos + angles, a.rope.sin + angles, pairs);
  __syncthreads();
  const int32_t* const table =
      a.sequences.context_blocks + at.sequence * a.sequences.context_stride;
  if (a.kind == CompressedRowKind::kAttention) {
    EncodeKvRowParts(x, dim, 2 * pairs, a.rows.main(table, entry), a.rows.scales(table, entry));
  } else {
    EncodeIndexRowParts(x, dim, a.rows.main(table, entry), a.rows.scales(table, entry));
  }
}

// The last rows of each sequence, as many as its ring has.
__global__ void __launch_bounds__(kThreads) WriteRings(const CompressArguments a) {
  WaitForPrevious();
  LetNextStart();
  const TokenPlace at = PlaceOf(a, blockIdx.x);
  if (at.position < 0) return;
  if (at.position - at.first_position < a.sequences.tokens[at.sequence] - a.ring_rows) return;
  const int64_t channels = Channels(a);
  const float* const kv = a.kv + blockIdx.x * channels;
  const float* const score = a.score + blockIdx.x * channels;
  const float* const bias = a.position_bias + at.position % a.rate * channels;
  float* const slot = RingRow(a, at, at.position);
  for (int64_t c = threadIdx.x; c < channels; c += kThreads) {
    slot[c] = kv[c];
    slot[channels + c] = score[c] + bias[c];
  }
}

}  // namespace

cudaError_t LaunchCompress(const CompressArguments& arguments, cudaStream_t stream) {
  if (arguments.dim > kMostDim || arguments.rate < 1 || arguments.dim < 2 * arguments.rope.pairs ||
      (arguments.kind == CompressedRowKind::kIndex && arguments.dim % kMxfp4Block != 0)) {
    return cudaErrorInvalidValue;
  }
  if (arguments.tokens.count == 0) return cudaSuccess;
  const auto tokens = static_cast<unsigned>(arguments.tokens.count);
  const auto bytes = static_cast<size_t>(arguments.dim + SegmentsOf(arguments.dim)) * sizeof(float);
  const cudaError_t launched =
      LaunchDependent(MakeEntries, {tokens, kThreads, bytes}, stream, arguments);
  if (launched != cudaSuccess) return launched;
  return LaunchDependent(WriteRings, {tokens, kThreads}, stream, arguments);
}

}  // namespace halfbyte
