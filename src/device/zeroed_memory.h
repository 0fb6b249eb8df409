// Large memory that reads as zero and costs nothing until it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace halfbyte {

// kHuge asks for pages of 2 MiB, for memory that is read as a whole again and again: fewer misses
// of the address translation. Only asked: the system may give small ones. Pieces below 2 MiB share
// such pages; theirs are given back when the last of the neighbours goes.
enum class Pages : uint8_t { kSmall, kHuge };

class ZeroedMemory {
 public:
  ZeroedMemory();
  // At the start of a page. Error: the address space or the system's limits do not allow it; `what`
  // names the purpose.
  static Result<ZeroedMemory> Allocate(int64_t bytes, const char* what,
                                       Pages pages = Pages::kSmall);

  ZeroedMemory(ZeroedMemory&&) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&&) noexcept;
  ~ZeroedMemory();

  std::byte* data() const { return data_.get(); }

 private:
  std::shared_ptr<std::byte> data_;
};

}  // namespace halfbyte
