// The reference: one block after the other through numerics/nvfp4_block.h.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/quantize_nvfp4/row_kernels.h"

namespace halfbyte::quantize_nvfp4 {
namespace {

float Decode(float x) { return x; }
float Decode(Bf16 x) { return ToFloat(x); }

template <class T>
void LoadBlock(const std::byte* source, int64_t block, float* x) {
  T raw[kNvfp4Block];
  std::memcpy(raw, source + block * int64_t{sizeof(raw)}, sizeof(raw));
  for (int i = 0; i < kNvfp4Block; ++i) x[i] = Decode(raw[i]);
}

template <class T, Nvfp4Block (*kQuantizeBlock)(const float*, GlobalScale, Nvfp4BlockStats*)>
void Quantize(const std::byte* source, int64_t blocks, float global_scale, uint8_t* codes,
              uint8_t* block_scales, Nvfp4BlockStats* stats) {
  for (int64_t b = 0; b < blocks; ++b) {
    float x[kNvfp4Block];
    LoadBlock<T>(source, b, x);
    const Nvfp4Block block = kQuantizeBlock(x, GlobalScale(global_scale), stats);
    std::memcpy(codes + b * int64_t{sizeof(block.codes)}, block.codes, sizeof(block.codes));
    block_scales[b] = block.scale;
  }
}

template <class T>
void Amax(const std::byte* source, int64_t blocks, MatrixAmax* amax) {
  for (int64_t b = 0; b < blocks; ++b) {
    float x[kNvfp4Block];
    LoadBlock<T>(source, b, x);
    for (const float value : x) {
      if (std::isfinite(value)) {
        amax->amax = std::max(amax->amax, std::abs(value));
      } else {
        ++amax->non_finite;
      }
    }
  }
}

void Encode(float x, float* out) { *out = x; }
void Encode(float x, Bf16* out) { *out = ToBf16(x); }

template <class T>
void Dequantize(const uint8_t* codes, const uint8_t* block_scales, int64_t blocks,
                float global_scale, std::byte* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    T values[kNvfp4Block];
    for (int i = 0; i < kNvfp4Block; ++i) {
      Encode(DequantizeNvfp4(UnpackE2m1(codes, b * kNvfp4Block + i), block_scales[b],
                             GlobalScale(global_scale)),
             &values[i]);
    }
    std::memcpy(out + b * int64_t{sizeof(values)}, values, sizeof(values));
  }
}

template <class T>
constexpr FormatKernels kFormat = {&Quantize<T, QuantizeNvfp4Block>,
                                   &Quantize<T, QuantizeNvfp4Block4Over6>, &Amax<T>,
                                   &Dequantize<T>};

}  // namespace

const RowKernels kScalarKernels = {kFormat<float>, kFormat<Bf16>};

QuantizeRow FlushEarlyRow(DType dtype) {
  return dtype == DType::kBf16 ? &Quantize<Bf16, QuantizeNvfp4BlockFlushEarly>
                               : &Quantize<float, QuantizeNvfp4BlockFlushEarly>;
}

}  // namespace halfbyte::quantize_nvfp4
