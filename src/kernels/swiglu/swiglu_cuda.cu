#include "device/cuda/launch.cuh"
#include "kernels/row_math.cuh"
#include "kernels/swiglu/swiglu_cuda.h"

namespace halfbyte {
namespace {

constexpr unsigned kThreads = 256;

__device__ uint16_t Activate(const SwigluArguments& a, float gate, float up) {
  const float g = a.limit < gate ? a.limit : gate;
  const float below = a.limit < up ? a.limit : up;
  const float u = -a.limit > below ? -a.limit : below;
  const float silu = g / (1.0f + Exp16(-a.alpha * g));
  return ToBf16(silu * (u + a.add)).bits;
}

__global__ void __launch_bounds__(kThreads) Swiglu(const SwigluArguments a) {
  WaitForPrevious();
  LetNextStart();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.count / 4) return;
  const float4 gate = reinterpret_cast<const float4*>(a.gate)[i];
  const float4 up = reinterpret_cast<const float4*>(a.up)[i];
  reinterpret_cast<ushort4*>(a.h)[i] =
      make_ushort4(Activate(a, gate.x, up.x), Activate(a, gate.y, up.y), Activate(a, gate.z, up.z),
                   Activate(a, gate.w, up.w));
}

}  // namespace

cudaError_t LaunchSwiglu(const SwigluArguments& arguments, cudaStream_t stream) {
  if (arguments.count % 4 != 0) return cudaErrorInvalidValue;
  if (arguments.count == 0) return cudaSuccess;
  const int64_t blocks = (arguments.count / 4 + kThreads - 1) / kThreads;
  return LaunchDependent(Swiglu, {static_cast<unsigned>(blocks), kThreads}, stream, arguments);
}

}  // namespace halfbyte
