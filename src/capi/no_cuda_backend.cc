// In place of cuda_backend.cc in libraries built without CUDA.
#include "capi/moe_backend.h"

namespace halfbyte {

Status CheckCudaDevice(int32_t) {
  return MakeError(
      "options.device: this libhalfbyte was built without CUDA; build it with cmake --preset cuda, "
      "or choose HALFBYTE_MOE_CPU");
}

Result<std::unique_ptr<MoeBackend>> CreateCudaBackend(RoutedLayerParts,
                                                      const LayerOptions& options) {
  HB_RETURN_IF_ERROR(CheckCudaDevice(*options.gpu));
  return nullptr;  // never: that refuses
}

}  // namespace halfbyte
