#include "device/cuda/launch.cuh"
#include "kernels/combine/cuda_combine.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 8;

// A thread for four columns of a token.
__global__ void __launch_bounds__(kThreads) Combine(const CombineArguments arguments) {
  const int64_t quads = arguments.hidden / 4;
  const int64_t quad = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t token = blockIdx.x;
  WaitForPrevious();
  if (quad >= quads) return;
  const auto* values = reinterpret_cast<const float4*>(arguments.slot_values);
  float4 sum = make_float4(0, 0, 0, 0);
  // Some at a time, so that their loads are on the way together; added one by one.
  for (int64_t first = 0; first < arguments.top_k; first += kAtOnce) {
    float4 value[kAtOnce];
    float weight[kAtOnce];
    bool present[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t slot = token * arguments.top_k + first + i;
      const bool inside = first + i < arguments.top_k;
      const int64_t row = inside ? arguments.row_of_slot[slot] : -1;
      present[i] = row >= 0;
      value[i] = present[i] ? __ldcs(values + row * quads + quad) : make_float4(0, 0, 0, 0);
      weight[i] = inside && arguments.slot_weights != nullptr ? arguments.slot_weights[slot] : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!present[i]) continue;
      sum.x = __fmaf_rn(weight[i], value[i].x, sum.x);
      sum.y = __fmaf_rn(weight[i], value[i].y, sum.y);
      sum.z = __fmaf_rn(weight[i], value[i].z, sum.z);
      sum.w = __fmaf_rn(weight[i], value[i].w, sum.w);
    }
  }
  sum.x *= arguments.output_scale;
  sum.y *= arguments.output_scale;
  sum.z *= arguments.output_scale;
  sum.w *= arguments.output_scale;
  if (arguments.out_is_bf16) {
    static_cast<ushort4*>(arguments.out)[token * quads + quad] = make_ushort4(
        ToBf16(sum.x).bits, ToBf16(sum.y).bits, ToBf16(sum.z).bits, ToBf16(sum.w).bits);
  } else {
    static_cast<float4*>(arguments.out)[token * quads + quad] = sum;
  }
}

}  // namespace

cudaError_t LaunchCombine(const CombineArguments& arguments, cudaStream_t stream) {
  if (arguments.tokens == 0) return cudaSuccess;
  const int64_t parts = (arguments.hidden / 4 + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(arguments.tokens), static_cast<unsigned>(parts));
  return LaunchDependent(Combine, {grid, kThreads}, stream, arguments);
}

}  // namespace halfbyte
