#include "device/zeroed_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

using Bytes = std::shared_ptr<std::byte>;

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 * 1024 * 1024;
// What small pieces share: a mapping of their own would have small pages.
constexpr int64_t kShared = 2 * kHugePage;

Result<std::byte*> Reserve(int64_t bytes, const char* what) {
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return MakeError(ErrorKind::kMemory, "{}: cannot reserve {} bytes: {}", what, bytes,
                     std::strerror(errno));
  }
  return static_cast<std::byte*>(data);
}

void Release(std::byte* data, int64_t bytes) {
  if (bytes > 0) ::munmap(data, static_cast<size_t>(bytes));
}

Bytes Owned(std::byte* data, int64_t bytes) {
  return Bytes(data, [bytes](std::byte* p) { Release(p, bytes); });
}

Result<Bytes> Map(int64_t bytes, const char* what) {
  HB_ASSIGN_OR_RETURN(std::byte * data, Reserve(bytes, what));
  return Owned(data, bytes);
}

// Whole huge pages. What a range with room for one more has before and behind them is given back.
Result<Bytes> MapHuge(int64_t bytes, const char* what) {
  const int64_t whole = RoundUp(bytes, kHugePage);
  HB_ASSIGN_OR_RETURN(std::byte * range, Reserve(whole + kHugePage, what));
  const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(range) % kHugePage);
  std::byte* data = range + before;
  Release(range, before);
  Release(data + whole, kHugePage - before);
  // A kernel without huge pages refuses, which changes nothing but speed.
  ::madvise(data, static_cast<size_t>(whole), MADV_HUGEPAGE);
  return Owned(data, whole);
}

// The next piece of the shared mapping; of a new one, where it does not fit.
Result<Bytes> TakeShared(int64_t bytes, const char* what) {
  static std::mutex mutex;
  static std::weak_ptr<std::byte> current;  // its pieces own it
  static int64_t taken = 0;
  const std::lock_guard lock(mutex);
  const int64_t pages = RoundUp(bytes, kPage);
  Bytes shared = current.lock();
  if (shared == nullptr || taken + pages > kShared) {
    HB_ASSIGN_OR_RETURN(shared, MapHuge(kShared, what));
    current = shared;
    taken = 0;
  }
  Bytes piece(shared, shared.get() + taken);
  taken += pages;
  return piece;
}

}  // namespace

// Out of line: g++ 12 warns of an empty one that is moved within an std::optional.
ZeroedMemory::ZeroedMemory() = default;
ZeroedMemory::ZeroedMemory(ZeroedMemory&&) noexcept = default;
ZeroedMemory& ZeroedMemory::operator=(ZeroedMemory&&) noexcept = default;
ZeroedMemory::~ZeroedMemory() = default;

Result<ZeroedMemory> ZeroedMemory::Allocate(int64_t bytes, const char* what, Pages pages) {
  ZeroedMemory memory;
  if (bytes <= 0) return memory;
  const auto allocate = pages == Pages::kSmall ? Map : bytes < kHugePage ? TakeShared : MapHuge;
  HB_ASSIGN_OR_RETURN(memory.data_, allocate(bytes, what));
  return memory;
}

}  // namespace halfbyte
