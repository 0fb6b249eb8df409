// Two kernels: what goes into the streams and the partial sums that come out of them, cut by tokens
// and by 256 columns of the hidden size; then a block for a token, which adds them up.
#include "device/cuda/launch.cuh"
#include "kernels/hyper_connection/hyper_connection_cuda.h"
#include "kernels/row_math.cuh"

namespace halfbyte {
namespace {

constexpr int kThreads = 256;
constexpr int kHalves = kThreads / 16;  // a half warp sums a segment
constexpr int kMostStreams = 4;
constexpr int kMostRows = (2 + kMostStreams) * kMostStreams + 1;  // of fn, and one of squares

// Sums of a token: [rows + 1, segments of n * D], those of the squares last.
struct PartialArguments {
  Bf16* residual;
  const Bf16* y;
  const float* post;
  const float* comb;
  const float* fn;  // null: no sums
  int rows;         // of fn
  int streams;
  int64_t tokens, hidden;
  float* sums;
};

__device__ float Mixed(const float* old, float y, const float* post, const float* comb, int n,
                       int k) {
  float sum = post[k] * y;
  for (int j = 0; j < n; ++j) sum = __fmaf_rn(comb[j * n + k], old[j], sum);
  return sum;
}

// kTokens tokens one after the other, so that numbers of fn are read once for them.
template <int kTokens>
__global__ void __launch_bounds__(kThreads) Partial(const PartialArguments a) {
  __shared__ float x[kTokens][kMostStreams * kDeviceSegment];
  WaitForPrevious();
  LetNextStart();
  const int n = a.streams;
  const int64_t column = int64_t{blockIdx.y} * kDeviceSegment + threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * kTokens;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int64_t token = first + i;
    const bool inside = token < a.tokens && column < a.hidden;
    Bf16* const row = a.residual + token * n * a.hidden + column;
    float old[kMostStreams] = {};
    for (int j = 0; inside && j < n; ++j) old[j] = ToFloat(row[j * a.hidden]);
    const float y = inside && a.y != nullptr ? ToFloat(a.y[token * a.hidden + column]) : 0.0f;
    for (int k = 0; k < n; ++k) {
      float value = old[k];
      if (inside && a.y != nullptr) {
        const Bf16 rounded =
            ToBf16(Mixed(old, y, a.post + token * n, a.comb + token * n * n, n, k));
        row[k * a.hidden] = rounded;
        value = ToFloat(rounded);
      }
      x[i][k * kDeviceSegment + threadIdx.x] = value;
    }
  }
  if (a.fn == nullptr) return;
  __syncthreads();
  const int half = static_cast<int>(threadIdx.x) / 16, lane = static_cast<int>(threadIdx.x) % 16;
  const int width = static_cast<int>(
      min(a.hidden - int64_t{blockIdx.y} * kDeviceSegment, int64_t{kDeviceSegment}));
  const int segments = n * static_cast<int>(gridDim.y);
  const int pieces = (a.rows + 1) * n;
  for (int begin = 0; begin < pieces; begin += kHalves) {
    const int piece = begin + half;
    const bool inside = piece < pieces;
    const int r = piece / n, k = piece % n;
    const bool squares = r == a.rows;
    const float* fn = a.fn + (int64_t{r} * n + k) * a.hidden + int64_t{blockIdx.y} * kDeviceSegment;
    float sum[kTokens] = {};
    for (int c = lane; inside && c < width; c += 16) {
      const float weight = squares ? 0.0f : fn[c];
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const float value = x[i][k * kDeviceSegment + c];
        sum[i] = __fmaf_rn(value, squares ? value : weight, sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const float total = SumOf16(sum[i]);
      if (!inside || lane != 0 || first + i >= a.tokens) continue;
      a.sums[((first + i) * (a.rows + 1) + r) * segments + k * static_cast<int>(gridDim.y) +
             static_cast<int>(blockIdx.y)] = total;
    }
  }
}

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + Exp16(-1.0f * x)); }

// Lines of n numbers, a thread of a warp for each number, divided by their sums + eps: rows, or
// columns. c: of this thread, [j, k] in thread j * n + k.
__device__ float NormalizeLine(float c, int n, int first, int step, float eps) {
  float sum = __shfl_sync(0xffffffffu, c, first);
  for (int b = 1; b < n; ++b) sum = sum + __shfl_sync(0xffffffffu, c, first + b * step);
  return c * (1.0f / (sum + eps));
}

// By the first warp; numbers beyond n * n are nobody's.
__device__ float SinkhornOfWarp(float logit, int n, int iterations, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int j = lane / n % n, k = lane % n;
  float largest = __shfl_sync(0xffffffffu, logit, j * n);
  for (int b = 1; b < n; ++b) {
    const float other = __shfl_sync(0xffffffffu, logit, j * n + b);
    largest = other > largest ? other : largest;
  }
  float c = Exp16(logit - largest);
  c = NormalizeLine(c, n, j * n, 1, 0.0f) + eps;
  c = NormalizeLine(c, n, k, n, eps);
  for (int i = 1; i < iterations; ++i) {
    c = NormalizeLine(c, n, j * n, 1, eps);
    c = NormalizeLine(c, n, k, n, eps);
  }
  return c;
}

struct FinishArguments {
  const float* sums;
  const Bf16* residual;
  DeviceHyperConnection hc;
  bool head;
  int64_t hidden;
  const float* norm;
  float norm_eps;
  Bf16* x;
  float* post;
  float* comb;
};

__global__ void __launch_bounds__(kThreads) Finish(const FinishArguments a) {
  extern __shared__ float row[];  // [hidden], then sums of its segments
  __shared__ float totals[kMostRows];
  __shared__ float gates[kMostStreams];
  WaitForPrevious();
  LetNextStart();
  const int n = a.hc.streams, rows = a.head ? n : (2 + n) * n;
  const int64_t token = blockIdx.x;
  const int segments = n * static_cast<int>(SegmentsOf(a.hidden));
  const int i = static_cast<int>(threadIdx.x);
  if (i <= rows) totals[i] = TreeTotal(a.sums + (token * (rows + 1) + i) * segments, segments);
  __syncthreads();
  const float mean = totals[rows] / static_cast<float>(n * a.hidden);
  const float factor = 1.0f / sqrtf(mean + a.hc.norm_eps);
  const auto logit = [&](int r, int part) {
    return totals[r] * factor * a.hc.scale[part] + a.hc.base[r];
  };
  if (i < n) gates[i] = Sigmoid(logit(i, 0)) + a.hc.eps;
  if (!a.head) {
    if (i < n) a.post[token * n + i] = 2.0f * Sigmoid(logit(n + i, 1));
    if (i < 32) {
      const float c = SinkhornOfWarp(i < n * n ? logit(2 * n + i, 2) : 0.0f, n,
                                     a.hc.sinkhorn_iterations, a.hc.eps);
      if (i < n * n) a.comb[token * n * n + i] = c;
    }
  }
  __syncthreads();
  const Bf16* const streams = a.residual + token * n * a.hidden;
  const int hidden = static_cast<int>(a.hidden);
  for (int c = i; c < hidden; c += kThreads) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum = __fmaf_rn(gates[j], ToFloat(streams[j * hidden + c]), sum);
    row[c] = RoundToBf16(sum);
  }
  __syncthreads();
  const float norm_factor = NormFactor(row, hidden, a.norm_eps, row + hidden);
  Bf16* const x = a.x + token * hidden;
  for (int c = i; c < hidden; c += kThreads) x[c] = ToBf16(a.norm[c] * (row[c] * norm_factor));
}

cudaError_t LaunchPartial(const PartialArguments& arguments, cudaStream_t stream) {
  constexpr int64_t kFew = 64, kAtOnce = 8;
  const bool few = arguments.tokens <= kFew;
  const int64_t blocks = few ? arguments.tokens : (arguments.tokens + kAtOnce - 1) / kAtOnce;
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(SegmentsOf(arguments.hidden)));
  return few ? LaunchDependent(Partial<1>, {grid, kThreads}, stream, arguments)
             : LaunchDependent(Partial<kAtOnce>, {grid, kThreads}, stream, arguments);
}

cudaError_t LaunchFinish(const FinishArguments& arguments, int64_t tokens, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(arguments.hidden + SegmentsOf(arguments.hidden)) * 4;
  return LaunchDependent(Finish, {static_cast<unsigned>(tokens), kThreads, bytes}, stream,
                         arguments);
}

// Segments must not cross the border of a stream, unless there is one stream.
bool IsSupported(int streams, int64_t hidden) {
  return (streams == 1 || streams == 2 || streams == 4) && hidden % 8 == 0 && hidden > 0 &&
         hidden <= 8192 && (streams == 1 || hidden % kDeviceSegment == 0);
}

}  // namespace

int64_t BoundaryScratchBytes(int64_t tokens, int64_t hidden, int streams) {
  return tokens * ((2 + streams) * streams + 1) * streams * SegmentsOf(hidden) *
         int64_t{sizeof(float)};
}

cudaError_t LaunchBoundary(const BoundaryArguments& arguments, cudaStream_t stream) {
  const int n = arguments.streams;
  if (!IsSupported(n, arguments.hidden)) return cudaErrorInvalidValue;
  const bool enters = arguments.entered.fn != nullptr;
  if (arguments.tokens == 0 || (!enters && arguments.y == nullptr)) return cudaSuccess;
  auto* const sums = reinterpret_cast<float*>(arguments.scratch);
  const cudaError_t launched = LaunchPartial({.residual = arguments.residual,
                                              .y = arguments.y,
                                              .post = arguments.post,
                                              .comb = arguments.comb,
                                              .fn = arguments.entered.fn,
                                              .rows = (2 + n) * n,
                                              .streams = n,
                                              .tokens = arguments.tokens,
                                              .hidden = arguments.hidden,
                                              .sums = sums},
                                             stream);
  if (launched != cudaSuccess || !enters) return launched;
  return LaunchFinish({.sums = sums,
                       .residual = arguments.residual,
                       .hc = arguments.entered,
                       .head = false,
                       .hidden = arguments.hidden,
                       .norm = arguments.norm,
                       .norm_eps = arguments.norm_eps,
                       .x = arguments.x,
                       .post = arguments.post,
                       .comb = arguments.comb},
                      arguments.tokens, stream);
}

cudaError_t LaunchMergeStreams(const MergeStreamsArguments& arguments, cudaStream_t stream) {
  const int n = arguments.head.streams;
  if (!IsSupported(n, arguments.hidden)) return cudaErrorInvalidValue;
  if (arguments.tokens == 0) return cudaSuccess;
  auto* const sums = reinterpret_cast<float*>(arguments.scratch);
  const cudaError_t launched = LaunchPartial({.residual = const_cast<Bf16*>(arguments.residual),
                                              .fn = arguments.head.fn,
                                              .rows = n,
                                              .streams = n,
                                              .tokens = arguments.tokens,
                                              .hidden = arguments.hidden,
                                              .sums = sums},
                                             stream);
  if (launched != cudaSuccess) return launched;
  return LaunchFinish({.sums = sums,
                       .residual = arguments.residual,
                       .hc = arguments.head,
                       .head = true,
                       .hidden = arguments.hidden,
                       .norm = arguments.norm,
                       .norm_eps = arguments.norm_eps,
                       .x = arguments.x},
                      arguments.tokens, stream);
}

}  // namespace halfbyte
