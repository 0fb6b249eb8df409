// Bytes in GPU memory with an owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace halfbyte {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  // Aligned to 256 bytes, not cleared. `what` stands in the error, which names the bytes wanted and
  // free. Zero bytes own nothing.
  static Result<DeviceBuffer> Allocate(int64_t bytes, std::string_view what);
  // A copy of host memory, complete on return.
  static Result<DeviceBuffer> Upload(const void* host, int64_t bytes, std::string_view what);

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace halfbyte
