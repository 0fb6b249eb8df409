// The kernels behind cuda_limits.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace halfbyte {

// Reads `bytes` (a multiple of 16) with wide loads; *sink depends on all of them.
cudaError_t LaunchRead(const void* memory, int64_t bytes, uint32_t* sink, cudaStream_t stream);

// `count` bf16 numbers of magnitude 0.5..2 with random signs.
cudaError_t LaunchFillBf16(void* memory, int64_t count, uint32_t seed, cudaStream_t stream);

}  // namespace halfbyte
