// A tensor that somebody else owns: dtype, shape and row-major bytes. The bytes may start at any
// address (checkpoint files do not align them), so elements are read with Load, never by casting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace halfbyte {

using Shape = std::vector<int64_t>;  // outermost first; empty for a scalar

// Product of the dimensions, 1 for a scalar. The caller has checked that it fits 64 bits.
constexpr int64_t ElementCount(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

// Of a tensor of a known dtype. Types below a byte are packed without gaps, and the caller has
// checked that the last byte is full.
constexpr int64_t ByteCount(DType dtype, std::span<const int64_t> shape) {
  return ElementCount(shape) * DTypeBits(dtype) / 8;
}

// "[256, 4096]"
std::string ShapeString(std::span<const int64_t> shape);

struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;  // ByteCount(dtype, shape) of them

  int64_t elements() const { return ElementCount(shape); }

  // Element `index` in row-major order; sizeof(T) must be DTypeSize(dtype).
  template <class T>
  T Load(int64_t index) const {
    T value;
    std::memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
};

// Row-major matrix of fp32 (or other plain elements) that somebody else owns.
template <class T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;

  T* row(int64_t r) const { return data + r * columns; }
  MatrixView Rows(int64_t begin, int64_t count) const {
    return {data + begin * columns, count, columns};
  }
  operator MatrixView<const T>() const { return {data, rows, columns}; }
};

}  // namespace halfbyte
