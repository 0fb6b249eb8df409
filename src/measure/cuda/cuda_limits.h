// What a GPU can do at most, at the moment it is asked: clocks follow power and temperature, so
// measure limits in the run they are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/device_buffer.h"

namespace halfbyte {

// Bytes per second of reading `bytes` of device memory once, the median of several passes. Give it
// far more than the L2 cache holds.
Result<double> CudaReadRate(const CudaStream& stream, const std::byte* memory, int64_t bytes);

// Bf16 matrix products by cuBLASLt, which is looked for when this runs (libcublasLt.so.13 on the
// loader's path).
class CudaBf16Product {
 public:
  // Error: no cuBLASLt, or no memory. [size, size] times [size, size], random operands.
  static Result<CudaBf16Product> Create(int64_t size = 8192);
  ~CudaBf16Product();
  CudaBf16Product(CudaBf16Product&&) noexcept;
  CudaBf16Product& operator=(CudaBf16Product&&) noexcept;

  // Floating-point operations per second, a multiply-add being two: the median of several products.
  Result<double> Rate(const CudaStream& stream) const;

 private:
  struct State;
  explicit CudaBf16Product(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace halfbyte
