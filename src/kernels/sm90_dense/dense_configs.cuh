// The variants of the kernel, one for each width N of a token tile, and their launch. Up to 32
// tokens a block takes half of a multiprocessor's memory, so that the next product's blocks begin
// to load weights while these still run.
#pragma once

#include "device/cuda/launch.cuh"
#include "kernels/sm90_dense/dense_kernel.cuh"

namespace halfbyte::sm90 {

template <class Config>
struct DenseVariant {
  static cudaError_t Prepare();
  static cudaError_t Start(const DenseOperands& operands, int blocks, cudaStream_t stream);
};
// Outside of the class, or they would be inline, and every file that calls them compile the
// kernels.
template <class Config>
cudaError_t DenseVariant<Config>::Prepare() {
  const cudaError_t error = cudaFuncSetAttribute(
      DenseKernel<Config>, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  // Or two blocks might not find room beside each other.
  return cudaFuncSetAttribute(DenseKernel<Config>, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}
template <class Config>
cudaError_t DenseVariant<Config>::Start(const DenseOperands& operands, int blocks,
                                        cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(Config::kThreads),
                          Config::kSharedBytes};
  return LaunchDependent(DenseKernel<Config>, shape, stream, operands);
}

//                             N   W  groups, stages of tokens; weight slots; blocks per SM
using Dense8 = DenseConfig<8, 2, 2, 8, 3, 2>;
using Dense16 = DenseConfig<16, 2, 2, 4, 3, 2>;
using Dense32 = DenseConfig<32, 2, 2, 4, 2, 2>;
using Dense64 = DenseConfig<64, 2, 1, 8, 4, 1>;
using Dense128 = DenseConfig<128, 2, 1, 4, 4, 1>;
using Dense160 = DenseConfig<160, 2, 1, 4, 4, 1>;

extern template struct DenseVariant<Dense8>;
extern template struct DenseVariant<Dense16>;
extern template struct DenseVariant<Dense32>;
extern template struct DenseVariant<Dense64>;
extern template struct DenseVariant<Dense128>;
extern template struct DenseVariant<Dense160>;

}  // namespace halfbyte::sm90
