#include "device/cuda/launch.cuh"
#include "kernels/elementwise/elementwise_cuda.h"

namespace halfbyte {
namespace {

constexpr unsigned kThreads = 256;

// A block for a token; a thread for eight numbers of it.
__global__ void __launch_bounds__(kThreads) Embed(const EmbedArguments arguments) {
  WaitForPrevious();
  LetNextStart();
  const int64_t token = blockIdx.x, vectors = arguments.columns / 8;
  const int32_t id = arguments.tokens.token_ids[token];
  const bool known = arguments.tokens.positions[token] >= 0 && id >= 0 && id < arguments.vocab;
  const auto* row = reinterpret_cast<const uint4*>(arguments.table) + (known ? id : 0) * vectors;
  auto* out = reinterpret_cast<uint4*>(arguments.out) + token * arguments.copies * vectors;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const uint4 numbers = known ? row[i] : make_uint4(0, 0, 0, 0);
    for (int64_t copy = 0; copy < arguments.copies; ++copy) out[copy * vectors + i] = numbers;
  }
}

__global__ void __launch_bounds__(kThreads) KeepRows(const KeepRowsArguments arguments) {
  WaitForPrevious();
  LetNextStart();
  const int64_t words = arguments.row_bytes / 4;
  const auto* from = static_cast<const uint32_t*>(arguments.from);
  auto* to = static_cast<uint32_t*>(arguments.to) + blockIdx.x * words;
  from += arguments.rows[blockIdx.x] * words;
  for (int64_t i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads) AddRows(const AddRowsArguments arguments) {
  WaitForPrevious();
  LetNextStart();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= arguments.count / 4) return;
  const float4 a = reinterpret_cast<const float4*>(arguments.a)[i];
  const float4 b = reinterpret_cast<const float4*>(arguments.b)[i];
  reinterpret_cast<ushort4*>(arguments.out)[i] =
      make_ushort4(ToBf16(a.x + b.x).bits, ToBf16(a.y + b.y).bits, ToBf16(a.z + b.z).bits,
                   ToBf16(a.w + b.w).bits);
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedArguments& arguments, cudaStream_t stream) {
  if (arguments.columns % 8 != 0) return cudaErrorInvalidValue;
  if (arguments.tokens.count == 0) return cudaSuccess;
  return LaunchDependent(Embed, {static_cast<unsigned>(arguments.tokens.count), kThreads}, stream,
                         arguments);
}

cudaError_t LaunchKeepRows(const KeepRowsArguments& arguments, cudaStream_t stream) {
  if (arguments.row_bytes % 4 != 0) return cudaErrorInvalidValue;
  if (arguments.count == 0) return cudaSuccess;
  return LaunchDependent(KeepRows, {static_cast<unsigned>(arguments.count), kThreads}, stream,
                         arguments);
}

cudaError_t LaunchAddRows(const AddRowsArguments& arguments, cudaStream_t stream) {
  if (arguments.count % 4 != 0) return cudaErrorInvalidValue;
  if (arguments.count == 0) return cudaSuccess;
  const int64_t blocks = (arguments.count / 4 + kThreads - 1) / kThreads;
  return LaunchDependent(AddRows, {static_cast<unsigned>(blocks), kThreads}, stream, arguments);
}

}  // namespace halfbyte
