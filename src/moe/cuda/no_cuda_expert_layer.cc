// In place of cuda_expert_layer.cc in builds without CUDA.
#include "moe/cuda/cuda_expert_layer.h"

namespace halfbyte {

Status CheckGpu(int32_t) {
  return MakeError("this libhalfbyte was built without CUDA; build it with cmake --preset cuda");
}

Result<std::unique_ptr<ExpertLayer>> CreateCudaExpertLayer(RoutedLayerParts, int32_t ordinal) {
  HB_RETURN_IF_ERROR(CheckGpu(ordinal));
  return nullptr;  // never: that refuses
}

}  // namespace halfbyte
