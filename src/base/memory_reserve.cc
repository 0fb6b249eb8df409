#include "base/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <new>

namespace halfbyte {
namespace {

// Pages that nobody touches: what a limit on addresses or private memory counts, and no more.
std::atomic<void*> reserve = nullptr;
size_t reserve_bytes = 0;
thread_local bool essential = false;

void GiveUpReserveOrThrow() {
  void* memory = essential ? reserve.exchange(nullptr) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  ::munmap(memory, reserve_bytes);
}

}  // namespace

bool MemoryReserve::Install(int64_t bytes) {
  reserve_bytes = static_cast<size_t>(bytes);
  std::set_new_handler(GiveUpReserveOrThrow);
  return Refill();
}

bool MemoryReserve::Refill() {
  if (reserve != nullptr) return true;
  void* memory = ::mmap(nullptr, reserve_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  reserve = memory;
  return true;
}

bool MemoryReserve::given_up() {
  return reserve_bytes > 0 && reserve.load(std::memory_order_relaxed) == nullptr;
}

void MarkEssentialThread() { essential = true; }

}  // namespace halfbyte
