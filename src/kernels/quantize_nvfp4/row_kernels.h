// The variants behind quantize_nvfp4.h: functions on one row of whole blocks, one table per
// instruction set. Every table computes the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu_isa.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"

namespace halfbyte::quantize_nvfp4 {

// `blocks` groups of 16 elements at `source`, any address. Adds to *stats.
using QuantizeRow = void (*)(const std::byte* source, int64_t blocks, float global_scale,
                             uint8_t* codes, uint8_t* block_scales, Nvfp4BlockStats* stats);
// Over `blocks` groups of 16 elements; joins into *amax.
using AmaxRow = void (*)(const std::byte* source, int64_t blocks, MatrixAmax* amax);
// `out` is fp32 or bf16, any address.
using DequantizeRow = void (*)(const uint8_t* codes, const uint8_t* block_scales, int64_t blocks,
                               float global_scale, std::byte* out);

struct FormatKernels {
  QuantizeRow quantize;
  QuantizeRow quantize_4_over_6;
  AmaxRow amax;
  DequantizeRow dequantize;
};
struct RowKernels {
  FormatKernels f32;
  FormatKernels bf16;
};

extern const RowKernels kScalarKernels;  // the reference

// Nvfp4Rule::kFlushEarly, which has this variant only; kF32 or kBf16.
QuantizeRow FlushEarlyRow(DType dtype);

const RowKernels& KernelsFor(CpuIsa isa);

}  // namespace halfbyte::quantize_nvfp4

namespace halfbyte::simd_avx2 {
extern const quantize_nvfp4::RowKernels kRowKernels;
}
namespace halfbyte::simd_avx512 {
extern const quantize_nvfp4::RowKernels kRowKernels;
}
