// Large memory that reads as zero and costs nothing until it is written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace halfbyte {

class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  // Error: the address space or the system's limits do not allow it; `what` names the purpose.
  static Result<ZeroedMemory> Allocate(int64_t bytes, const char* what);

  ZeroedMemory(ZeroedMemory&& other) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept;
  ~ZeroedMemory();

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace halfbyte
