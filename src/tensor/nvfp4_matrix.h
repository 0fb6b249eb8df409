// An NVFP4 matrix [rows, k] with linear (checkpoint) scales, as a view and as an owner. `k` is the
// logical width; packed sizes follow from it, so no caller ever halves a dimension.
#pragma once

#include <cstdint>
#include <vector>

#include "numerics/global_scale.h"
#include "numerics/nvfp4_block.h"
#include "tensor/scale_layout.h"

namespace halfbyte {

struct Nvfp4View {
  int64_t rows = 0;
  int64_t k = 0;                          // a multiple of 16
  const uint8_t* codes = nullptr;         // [rows, k/2], low nibble = even element
  const uint8_t* block_scales = nullptr;  // [rows, k/16] E4M3, linear
  GlobalScale global_scale{1.0f};

  LinearScales scale_layout() const { return {rows, k / kNvfp4Block}; }
  const uint8_t* row_codes(int64_t row) const { return codes + row * (k / 2); }
  const uint8_t* row_scales(int64_t row) const {
    return block_scales + scale_layout().offset(row, 0);
  }
  float at(int64_t row, int64_t column) const {
    return DequantizeNvfp4(UnpackE2m1(row_codes(row), column),
                           row_scales(row)[column / kNvfp4Block], global_scale);
  }
};

class Nvfp4Matrix {
 public:
  Nvfp4Matrix() = default;
  Nvfp4Matrix(int64_t rows, int64_t k, GlobalScale global_scale)
      : rows_(rows),
        k_(k),
        global_scale_(global_scale),
        codes_(static_cast<size_t>(rows * k / 2)),
        block_scales_(static_cast<size_t>(rows * (k / kNvfp4Block))) {}

  int64_t rows() const { return rows_; }
  int64_t k() const { return k_; }
  uint8_t* codes() { return codes_.data(); }
  uint8_t* block_scales() { return block_scales_.data(); }
  Nvfp4View view() const { return {rows_, k_, codes_.data(), block_scales_.data(), global_scale_}; }

 private:
  int64_t rows_ = 0;
  int64_t k_ = 0;
  GlobalScale global_scale_{1.0f};
  std::vector<uint8_t> codes_;
  std::vector<uint8_t> block_scales_;
};

}  // namespace halfbyte
