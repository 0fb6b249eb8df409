// NVFP4 experts without a checkpoint. Normally distributed weights go through the quantizer once
// per projection; each expert holds the rows of that matrix, rotated by another amount. So codes
// and scales are distributed as in a real checkpoint, and every expert has memory of its own.
#pragma once

#include <cstddef>
#include <vector>

#include "base/result.h"
#include "device/context.h"
#include "device/zeroed_memory.h"
#include "measure/machine_limits.h"
#include "measure/moe_shape.h"
#include "moe/moe_layer.h"

namespace halfbyte {

class SyntheticExperts {
 public:
  // Error: the memory, shape.experts * shape.expert_bytes(), cannot be had.
  static Result<SyntheticExperts> Make(const Context& context, const MoeShape& shape);

  // Views; the memory stays here.
  const std::vector<ExpertWeights>& weights() const { return weights_; }
  // All bytes of one expert.
  MemorySpan memory(int32_t expert) const {
    return {memory_.data() + expert * expert_bytes_, static_cast<size_t>(expert_bytes_)};
  }
  // Gives the memory of this expert back to the system: its weights read as zero from now on.
  void Drop(int32_t expert);

 private:
  ZeroedMemory memory_;
  int64_t expert_bytes_ = 0;
  std::vector<ExpertWeights> weights_;
};

}  // namespace halfbyte
