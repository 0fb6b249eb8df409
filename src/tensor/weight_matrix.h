// A weight matrix [rows, columns] in the format it is stored in: a view of checkpoint bytes that
// kernels compute from directly. y = W x; `columns` is the contraction dimension K and always
// logical (never halved for packed formats). Bytes may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/global_scale.h"
#include "tensor/dtype.h"

namespace halfbyte {

enum class WeightFormat : uint8_t { kF32, kBf16, kF16, kFp8, kNvfp4, kMxfp4 };

struct WeightMatrix {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  const std::byte* data = nullptr;  // row-major; 4-bit formats pack two codes a byte, low = even

  // Block scales; null for the unquantized formats.
  //   kFp8:   [ceil(rows/block_rows), ceil(columns/block_columns)] of scale_dtype (E8M0, F32,
  //   BF16);
  //           one scale per channel is block_columns = columns, per tensor also block_rows = rows.
  //   kNvfp4: [rows, columns/16] E4M3, linear.   kMxfp4: [rows, columns/32] E8M0, linear.
  const std::byte* scales = nullptr;
  DType scale_dtype = DType::kF8E4m3;
  int64_t scale_block_rows = 1;
  int64_t scale_block_columns = 0;

  GlobalScale global_scale{1.0f};  // kNvfp4 only

  int64_t row_bytes() const;  // of data
  int64_t scale_columns() const;
  int64_t scale_rows() const;
  int64_t bytes() const;  // data and scales as stored

  // The same matrix restricted to rows [begin, begin + count). For kFp8, `begin` must be a multiple
  // of scale_block_rows.
  WeightMatrix Rows(int64_t begin, int64_t count) const;
};

const char* WeightFormatName(WeightFormat format);

// The scale of kFp8 that covers (row, column), as fp32.
float Fp8WeightScale(const WeightMatrix& weight, int64_t row, int64_t column);

// out[columns] = the row's values in fp32: exact for every format but kFp8 with scales that are no
// powers of two, and kNvfp4, where the product with global_scale is rounded once.
void DequantizeRow(const WeightMatrix& weight, int64_t row, float* out);

}  // namespace halfbyte
