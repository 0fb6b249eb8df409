// GPU memory between the operations of a step, for steps of up to so many tokens: one piece for
// all rows (CudaOps lays them out) and one for what operations keep to themselves. What it held
// before never changes a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory_plan.h"
#include "base/result.h"
#include "checkpoint/model_config.h"
#include "device/cuda/device_buffer.h"
#include "kernels/sm90_dense/sm90_dense.h"
#include "model/program/model_ops.h"
#include "moe/cuda/cuda_moe_workspace.h"
#include "moe/cuda/moe_kernels.h"

namespace halfbyte {

// Of an element of such rows on a GPU.
int64_t CudaElementBytes(RowsName name);

// fp32 and bf16 numbers that RunExperts keeps for a token besides its rows.
int64_t CudaExpertBytes(const ModelConfig& config);

// Pieces of the arena begin at multiples of this.
inline constexpr int64_t kCudaArenaAlignment = 256;

// Shapes that the kernels are made for. Error: what does not fit, with the numbers.
Status CheckCudaShapes(const ModelConfig& config);

class CudaStepMemory {
 public:
  // The most that a step can take: by part.
  struct Sizes {
    int64_t tokens = 0;
    int64_t arena = 0;
    int64_t scratch = 0;        // of one operation at a time
    int64_t dense_scratch = 0;  // begins with zeros
    int64_t experts = 0;        // CudaMoeWorkspace
    int64_t bytes() const { return arena + scratch + dense_scratch + experts; }
  };
  // Steps of up to `tokens`, of sequences of up to `context` positions.
  static Sizes SizesOf(const ModelConfig& config, const MoeKernels& kernels, int64_t tokens,
                       int64_t context);

  // Error: GPU memory, with the numbers.
  static Result<CudaStepMemory> Create(const ModelConfig& config, const MoeKernels& kernels,
                                       int64_t tokens, int64_t context);

  const Sizes& sizes() const { return sizes_; }
  std::byte* arena() const { return arena_.data(); }
  std::byte* scratch() const { return scratch_.data(); }
  std::byte* dense_scratch() const { return dense_scratch_.data(); }
  const CudaMoeWorkspace& experts() const { return experts_; }

 private:
  Sizes sizes_;
  DeviceBuffer arena_, scratch_, dense_scratch_;
  CudaMoeWorkspace experts_;
};

}  // namespace halfbyte
