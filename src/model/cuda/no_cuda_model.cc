// In place of cuda_model.cc in builds without CUDA.
#include "model/cuda/cuda_model.h"

namespace halfbyte {

Result<std::unique_ptr<DeviceModel>> LoadCudaModel(const WeightSource&, const TransformerOptions&,
                                                   const Context&, const LoadListener&) {
  return MakeError("this program was built without CUDA; build it with cmake --preset cuda");
}

}  // namespace halfbyte
