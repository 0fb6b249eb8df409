// One expert after the other from host memory into packed GPU memory.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"
#include "moe/cuda/moe_kernels.h"
#include "moe/expert_weights.h"
#include "numerics/global_scale.h"

namespace halfbyte {

// GPU memory that an expert takes while it is uploaded, as stored.
int64_t StoredExpertBytes(int64_t hidden, int64_t intermediate);

struct ExpertGlobalScales {
  GlobalScale gate{1.0f};
  GlobalScale up{1.0f};
  GlobalScale down{1.0f};
};

class ExpertUploader {
 public:
  // Takes StoredExpertBytes of GPU memory until it is destroyed.
  static Result<ExpertUploader> Create(const MoeKernels& kernels, int64_t hidden,
                                       int64_t intermediate);

  // Complete on return. Errors name the matrix: not [intermediate, hidden] or [hidden,
  // intermediate]; not NVFP4, nor MXFP4 that becomes NVFP4 without loss; a bad scale.
  Result<ExpertGlobalScales> Upload(const ExpertWeights& expert, std::string_view name,
                                    uint8_t* packed);

 private:
  Result<GlobalScale> Stage(const WeightMatrix& weight, int64_t rows, int64_t columns,
                            std::string_view name, std::byte* to);

  const MoeKernels* kernels_ = nullptr;
  int64_t hidden_ = 0;
  int64_t intermediate_ = 0;
  CudaStream stream_;
  DeviceBuffer staging_;
};

}  // namespace halfbyte
