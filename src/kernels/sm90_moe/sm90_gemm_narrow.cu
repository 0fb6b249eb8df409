#include "kernels/sm90_moe/sm90_gemm_launch.cuh"

namespace halfbyte::sm90 {
template struct GemmKernels<NarrowConfig>;
}  // namespace halfbyte::sm90
