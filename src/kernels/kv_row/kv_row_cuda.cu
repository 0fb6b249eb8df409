#include "device/cuda/launch.cuh"
#include "kernels/kv_row/kv_row_cuda.h"
#include "kernels/kv_row/kv_row_encode.cuh"
#include "kernels/row_math.cuh"

namespace halfbyte {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostColumns = 4096;

// A block for a token: the norm of its low-rank row, or (the other half of the grid) its window
// row.
__global__ void __launch_bounds__(kThreads) StoreRows(const StoreRowsArguments a) {
  extern __shared__ float x[];  // the row, then sums of its segments
  WaitForPrevious();
  LetNextStart();
  const int64_t token = blockIdx.x;
  const bool window = blockIdx.y == 1;
  const int n = static_cast<int>(window ? a.head_dim : a.low_rank_columns);
  const Bf16* const from = (window ? a.window : a.low_rank) + token * n;
  const float* const weight = window ? a.window_norm : a.low_rank_norm;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) x[i] = ToFloat(from[i]);
  __syncthreads();
  const float factor = NormFactor(x, n, a.eps, x + n);
  if (!window) {
    Bf16* const to = a.low_rank + token * n;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
      to[i] = ToBf16(weight[i] * (x[i] * factor));
    }
    return;
  }
  const int32_t position = a.tokens.positions[token];
  if (position < 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    x[i] = RoundToBf16(weight[i] * (x[i] * factor));
  }
  __syncthreads();
  const int pairs = static_cast<int>(a.rope.pairs);
  RotateTail(x, n, a.rope.cos + position * a.rope.pairs, a.rope.sin + position * a.rope.pairs,
             pairs);
  __syncthreads();
  const int32_t* const table =
      a.sequences.window_pages + a.tokens.sequences[token] * a.sequences.window_stride;
  EncodeKvRowParts(x, n, 2 * pairs, a.rows.main(table, position), a.rows.scales(table, position));
}

}  // namespace

cudaError_t LaunchStoreRows(const StoreRowsArguments& arguments, cudaStream_t stream) {
  const int64_t columns = arguments.head_dim > arguments.low_rank_columns
                              ? arguments.head_dim
                              : arguments.low_rank_columns;
  if (columns > kMostColumns || arguments.head_dim < 2 * arguments.rope.pairs) {
    return cudaErrorInvalidValue;
  }
  if (arguments.tokens.count == 0) return cudaSuccess;
  const auto bytes = static_cast<size_t>(columns + SegmentsOf(columns)) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(arguments.tokens.count), 2);
  return LaunchDependent(StoreRows, {grid, kThreads, bytes}, stream, arguments);
}

}  // namespace halfbyte
