// Cosines and sines of all positions, in GPU memory: the CPU's, computed on the host.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/model_config.h"
#include "device/cuda/device_buffer.h"
#include "kernels/device_step.h"
#include "model/rope_tables.h"

namespace halfbyte {

class CudaRope {
 public:
  // Of positions 0 .. positions-1, for both kinds of layers. Error: GPU memory.
  static Result<CudaRope> Create(const RopeTables& rope, int64_t positions, ThreadPool& pool);
  static int64_t Bytes(const ModelConfig& config, int64_t positions) {
    return 2 * positions * config.rope_dim * int64_t{sizeof(float)};
  }

  int64_t positions() const { return positions_; }
  const DeviceRope& of(AttentionKind kind) const {
    return kind == AttentionKind::kWindow ? window_ : compressed_;
  }

 private:
  CudaRope() = default;

  int64_t positions_ = 0;
  DeviceRope window_, compressed_;
  DeviceBuffer memory_;  // [4][positions, pairs]
};

}  // namespace halfbyte
