#include "device/cuda/launch.cuh"
#include "kernels/sparse_metadata/sparse_metadata_cuda.h"

namespace halfbyte {
namespace {

constexpr int32_t kNone = -1;
constexpr int64_t kRatio = 128;
constexpr int kThreads = 128;

__device__ int32_t SlotOf(const DeviceBlockTables& tables, int64_t request, int64_t entry) {
  const int64_t block = entry / tables.rows_per_block;
  if (request < 0 || request >= tables.requests || block >= tables.columns) return kNone;
  const int64_t first =
      int64_t{tables.blocks[request * tables.columns + block]} * tables.rows_per_block;
  return static_cast<int32_t>(first + entry % tables.rows_per_block);
}

// A block for a token.
__global__ void __launch_bounds__(kThreads) C128aTopk(const C128aTopkArguments arguments) {
  const int64_t token = blockIdx.x;
  const bool decode = token < arguments.decode_tokens;
  const int64_t width = decode ? arguments.decode_width : arguments.prefill_width;
  const int64_t row = decode ? token : token - arguments.decode_tokens;
  int32_t* out = (decode ? arguments.decode_slots : arguments.prefill_rows) + row * width;
  int64_t n = 0;
  if (arguments.slot_mapping[token] >= 0) {
    n = (arguments.positions[token] + 1) / kRatio;
    n = n < 0 ? 0 : n < width ? n : width;
  }
  for (int64_t e = threadIdx.x; e < width; e += kThreads) {
    int32_t value = kNone;
    if (e < n) {
      value =
          decode ? SlotOf(arguments.tables, arguments.request[token], e) : static_cast<int32_t>(e);
    }
    out[e] = value;
  }
  if (decode && threadIdx.x == 0) arguments.decode_lengths[token] = static_cast<int32_t>(n);
}

__global__ void __launch_bounds__(kThreads) C4aTopk(const C4aTopkArguments arguments) {
  __shared__ int32_t warp_counts[kThreads / 32];
  const int64_t token = blockIdx.x;
  const bool valid = arguments.is_valid[token] != 0;
  int32_t count = 0;
  for (int64_t j = threadIdx.x; j < arguments.top_k; j += kThreads) {
    const int64_t at = token * arguments.top_k + j;
    const int32_t entry = valid ? arguments.entries[at] : kNone;
    arguments.slots[at] =
        entry < 0 ? kNone : SlotOf(arguments.tables, arguments.request[token], entry);
    count += entry >= 0;
  }
  count = __reduce_add_sync(0xffffffffu, count);
  if (threadIdx.x % 32 == 0) warp_counts[threadIdx.x / 32] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int32_t sum = 0;
  for (const int32_t warp : warp_counts) sum += warp;
  arguments.lengths[token] = sum;
}

}  // namespace

cudaError_t LaunchC128aTopkMetadata(const C128aTopkArguments& arguments, cudaStream_t stream) {
  if (arguments.tokens == 0) return cudaSuccess;
  return LaunchKernel(C128aTopk, {static_cast<unsigned>(arguments.tokens), kThreads}, stream,
                      arguments);
}

cudaError_t LaunchC4aGlobalTopk(const C4aTopkArguments& arguments, cudaStream_t stream) {
  if (arguments.tokens == 0) return cudaSuccess;
  return LaunchKernel(C4aTopk, {static_cast<unsigned>(arguments.tokens), kThreads}, stream,
                      arguments);
}

}  // namespace halfbyte
