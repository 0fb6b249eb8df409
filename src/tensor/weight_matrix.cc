#include "tensor/weight_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/fp16.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

template <class T>
T LoadElement(const std::byte* bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

float LoadScale(const std::byte* scales, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF8E8m0:
      return E8m0ToFloat(static_cast<uint8_t>(scales[index]));
    case DType::kF8E4m3:
      return E4m3ToFloat(static_cast<uint8_t>(scales[index]));
    case DType::kF32:
      return LoadElement<float>(scales, index);
    case DType::kBf16:
      return ToFloat(LoadElement<Bf16>(scales, index));
    default:
      HB_CHECK(false, "scale dtype {}", DTypeName(dtype));
  }
}

// out[count] = code * scale.
template <int count>
void DecodeBlock(const uint8_t* codes, float scale, float* out) {
  static constexpr auto kValues = [] {
    std::array<float, 16> values{};
    for (uint8_t code = 0; code < 16; ++code) values[code] = E2m1ToFloat(code);
    return values;
  }();
  for (int i = 0; i < count / 2; ++i) {
    out[2 * i] = kValues[codes[i] & 15] * scale;
    out[2 * i + 1] = kValues[codes[i] >> 4] * scale;
  }
}

}  // namespace

int64_t WeightMatrix::row_bytes() const {
  switch (format) {
    case WeightFormat::kF32:
      return columns * 4;
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      return columns * 2;
    case WeightFormat::kFp8:
      return columns;
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return columns / 2;
  }
  return 0;
}

int64_t WeightMatrix::scale_columns() const {
  switch (format) {
    case WeightFormat::kFp8:
      return CeilDiv(columns, scale_block_columns);
    case WeightFormat::kNvfp4:
      return columns / kNvfp4Block;
    case WeightFormat::kMxfp4:
      return columns / kMxfp4Block;
    default:
      return 0;
  }
}

int64_t WeightMatrix::scale_rows() const {
  return format == WeightFormat::kFp8 ? CeilDiv(rows, scale_block_rows) : rows;
}

int64_t WeightMatrix::bytes() const {
  return rows * row_bytes() + scale_rows() * scale_columns() * DTypeSize(scale_dtype);
}

WeightMatrix WeightMatrix::Rows(int64_t begin, int64_t count) const {
  HB_CHECK(begin >= 0 && count >= 0 && begin + count <= rows, "rows [{}, +{}) of {}", begin, count,
           rows);
  WeightMatrix part = *this;
  part.rows = count;
  part.data = data + begin * row_bytes();
  if (scales != nullptr) {
    const int64_t block_rows = format == WeightFormat::kFp8 ? scale_block_rows : 1;
    HB_CHECK(begin % block_rows == 0, "row {} is no multiple of scale_block_rows {}", begin,
             block_rows);
    part.scales = scales + begin / block_rows * scale_columns() * DTypeSize(scale_dtype);
  }
  return part;
}

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kFp8:
      return "FP8";
    case WeightFormat::kNvfp4:
      return "NVFP4";
    case WeightFormat::kMxfp4:
      return "MXFP4";
  }
  return "?";
}

float Fp8WeightScale(const WeightMatrix& weight, int64_t row, int64_t column) {
  const int64_t index =
      row / weight.scale_block_rows * weight.scale_columns() + column / weight.scale_block_columns;
  return LoadScale(weight.scales, weight.scale_dtype, index);
}

void DequantizeRow(const WeightMatrix& weight, int64_t row, float* out) {
  const std::byte* data = weight.data + row * weight.row_bytes();
  const auto* codes = reinterpret_cast<const uint8_t*>(data);
  const auto* scales =
      reinterpret_cast<const uint8_t*>(weight.scales) + row * weight.scale_columns();
  switch (weight.format) {  // outside of the loops: the converter decodes every element twice
    case WeightFormat::kF32:
      std::memcpy(out, data, static_cast<size_t>(weight.columns) * sizeof(float));
      break;
    case WeightFormat::kBf16:
      for (int64_t c = 0; c < weight.columns; ++c) out[c] = ToFloat(LoadElement<Bf16>(data, c));
      break;
    case WeightFormat::kF16:
      for (int64_t c = 0; c < weight.columns; ++c) out[c] = ToFloat(LoadElement<Fp16>(data, c));
      break;
    case WeightFormat::kFp8:
      for (int64_t begin = 0; begin < weight.columns; begin += weight.scale_block_columns) {
        const float scale = Fp8WeightScale(weight, row, begin);
        const int64_t end = std::min(begin + weight.scale_block_columns, weight.columns);
        for (int64_t c = begin; c < end; ++c) out[c] = E4m3ToFloat(codes[c]) * scale;
      }
      break;
    case WeightFormat::kNvfp4:
      for (int64_t b = 0; b < weight.columns / kNvfp4Block; ++b) {
        DecodeBlock<kNvfp4Block>(codes, E4m3ToFloat(scales[b]), out);
        for (int i = 0; i < kNvfp4Block; ++i) out[i] *= weight.global_scale.value();
        codes += kNvfp4Block / 2;
        out += kNvfp4Block;
      }
      break;
    case WeightFormat::kMxfp4:
      for (int64_t b = 0; b < weight.columns / kMxfp4Block; ++b) {
        DecodeBlock<kMxfp4Block>(codes, E8m0ToFloat(scales[b]), out);
        codes += kMxfp4Block / 2;
        out += kMxfp4Block;
      }
      break;
  }
}

}  // namespace halfbyte
