// Packs one expert on the GPU: checkpoint bytes in device memory become the blocks of
// sm90_layout.h, byte for byte what the host packer makes of them. Lossless: codes under a zero
// block scale, which mean zero, become zero codes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90_moe/sm90_layout.h"

namespace halfbyte::sm90 {

// NVFP4 as stored: codes [rows, k / 2], block scales [rows, k / 16] of 0x00..0x7e, linear. 8-byte
// aligned.
struct StoredMatrix {
  const uint8_t* codes = nullptr;
  const uint8_t* block_scales = nullptr;
};
struct StoredExpert {
  StoredMatrix gate;  // [intermediate, hidden]
  StoredMatrix up;    // [intermediate, hidden]
  StoredMatrix down;  // [hidden, intermediate]
};

// packed: ExpertShape::bytes() bytes, 16-byte aligned.
cudaError_t LaunchPackExpert(const StoredExpert& expert, ExpertShape shape, uint8_t* packed,
                             cudaStream_t stream);

}  // namespace halfbyte::sm90
