#include "tensor/weight_matrix.h"

#include <cstring>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/fp16.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  for (int64_t c = 0; c < weight.columns; ++c) {
    switch (weight.format) {
      case WeightFormat::kF32:
        out[c] = LoadElement<float>(data, c);
        break;
      case WeightFormat::kBf16:
        out[c] = ToFloat(LoadElement<Bf16>(data, c));
        break;
      case WeightFormat::kF16:
        out[c] = ToFloat(LoadElement<Fp16>(data, c));
        break;
      case WeightFormat::kFp8:
        out[c] = E4m3ToFloat(codes[c]) * Fp8WeightScale(weight, row, c);
        break;
      case WeightFormat::kNvfp4:
        out[c] =
            DequantizeNvfp4(UnpackE2m1(codes, c), scales[c / kNvfp4Block], weight.global_scale);
        break;
      case WeightFormat::kMxfp4:
        out[c] = DequantizeMxfp4(UnpackE2m1(codes, c), scales[c / kMxfp4Block]);
        break;
    }
  }
}

}  // namespace halfbyte
