// One call of a layer on a GPU.
#pragma once

#include <cstdint>

#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "numerics/bf16.h"

namespace halfbyte {

// What the quantizers of kW4a4 saw, in device memory; see Nvfp4DeviceStats.
struct CudaMoeCounters {
  Nvfp4DeviceStats gate_up;
  Nvfp4DeviceStats down;
};

enum class CudaMoeOutput : uint8_t {
  kBf16,  // the sum rounded once
  kF32,   // as it is, for a caller that adds to it (the shared expert, other ranks)
};

// All pointers are device memory; hidden and out are aligned to 16 bytes.
struct CudaMoeCall {
  const Bf16* hidden = nullptr;         // [tokens, hidden]
  const int32_t* topk_ids = nullptr;    // [tokens, top_k] global ids; others: no expert
  const float* topk_weights = nullptr;  // [tokens, top_k]
  int64_t tokens = 0;
  int64_t top_k = 0;
  void* out = nullptr;  // [tokens, hidden], every row is written
  CudaMoeOutput output = CudaMoeOutput::kBf16;
  CudaMoeCounters* counters = nullptr;  // added to in kW4a4; or null

  int64_t slots() const { return tokens * top_k; }
};

}  // namespace halfbyte
