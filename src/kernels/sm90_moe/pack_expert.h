// Packs one expert on the GPU: checkpoint bytes in device memory become the blocks of
// sm90_layout.h, byte for byte what the host packer makes of them. Lossless: codes under a zero
// block scale, which mean zero, become zero codes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90_moe/sm90_layout.h"
#include "kernels/uploaded_expert.h"

namespace halfbyte::sm90 {

// packed: ExpertShape::bytes() bytes, 16-byte aligned.
cudaError_t LaunchPackExpert(const UploadedExpert& expert, ExpertShape shape, uint8_t* packed,
                             cudaStream_t stream);

}  // namespace halfbyte::sm90
