#include "device/zeroed_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace halfbyte {

Result<ZeroedMemory> ZeroedMemory::Allocate(int64_t bytes, const char* what, Pages pages) {
  ZeroedMemory memory;
  if (bytes <= 0) return memory;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return MakeError("{}: cannot reserve {} bytes: {}", what, bytes, std::strerror(errno));
  }
  // A kernel without huge pages refuses, which changes nothing but speed.
  if (pages == Pages::kHuge) ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = static_cast<size_t>(bytes);
  return memory;
}

ZeroedMemory::ZeroedMemory(ZeroedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

ZeroedMemory& ZeroedMemory::operator=(ZeroedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ZeroedMemory::~ZeroedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace halfbyte
