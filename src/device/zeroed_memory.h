// Large memory that reads as zero and costs nothing until it is written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace halfbyte {

// kHuge asks for pages of 2 MiB, for memory that is read as a whole again and again: fewer misses
// of the address translation. Only asked: the system may give small ones.
enum class Pages : uint8_t { kSmall, kHuge };

class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  // At the start of a page. Error: the address space or the system's limits do not allow it; `what`
  // names the purpose.
  static Result<ZeroedMemory> Allocate(int64_t bytes, const char* what,
                                       Pages pages = Pages::kSmall);

  ZeroedMemory(ZeroedMemory&& other) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept;
  ~ZeroedMemory();

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace halfbyte
