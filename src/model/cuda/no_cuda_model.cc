// In place of cuda_model.cc in builds without CUDA.
#include "model/cuda/load_cuda_model.h"

namespace halfbyte {

namespace {

auto NoCuda() {
  return MakeError("this program was built without CUDA; build it with cmake --preset cuda");
}

}  // namespace

Result<MemoryPlan> PlanCudaModel(const WeightSource&, const TransformerOptions&) {
  return NoCuda();
}

Result<AvailableMemory> AvailableGpuMemory(int, double) { return NoCuda(); }

Result<std::unique_ptr<DeviceModel>> LoadCudaModel(const WeightSource&, const TransformerOptions&,
                                                   const Context&, const LoadListener&) {
  return NoCuda();
}

}  // namespace halfbyte
