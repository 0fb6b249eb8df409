// Compress on the GPU (compressor.h) with Rounding::kBf16, bit for bit: entries that a step
// completes into the KV cache, then the step's last rows into the rings.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device_step.h"

namespace halfbyte {

enum class CompressedRowKind : uint8_t {
  kAttention,  // KvFormat::kFp8
  kIndex,      // IndexFormat::kMxfp4
};

struct CompressArguments {
  DeviceTokens tokens;  // all of the step; padding stores nothing
  DeviceSequences sequences;
  DeviceRope rope;

  const float* kv = nullptr;             // [tokens, channels]: dim, or 2 * dim with overlap
  const float* score = nullptr;          // [tokens, channels], without bias
  const float* position_bias = nullptr;  // [rate, channels]
  const float* norm = nullptr;           // [dim]
  float eps = 0;
  int64_t rate = 0;
  int64_t dim = 0;
  bool overlap = false;

  CompressedRowKind kind = CompressedRowKind::kAttention;
  DeviceRows rows;  // of the layer, in context blocks; none before replay_ends / rate is written

  // CompressorRing of slot s: rings + s * slot_stride.
  float* rings = nullptr;
  int64_t slot_stride = 0;  // in floats
  int64_t ring_rows = 0;
};
cudaError_t LaunchCompress(const CompressArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
