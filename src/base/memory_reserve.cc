#include "base/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <exception>
#include <new>

namespace halfbyte {
namespace {

// Pages that nobody touches: what a limit on addresses or private memory counts, and no more.
std::atomic<void*> for_anybody = nullptr;
std::atomic<void*> for_essentials = nullptr;
size_t half_bytes = 0;
thread_local bool essential = false;

bool GiveUp(std::atomic<void*>& half) {
  void* memory = half.exchange(nullptr);
  if (memory != nullptr) ::munmap(memory, half_bytes);
  return memory != nullptr;
}

void GiveUpReserveOrThrow() {
  if (GiveUp(for_anybody)) return;
  if ((essential || std::uncaught_exceptions() > 0) && GiveUp(for_essentials)) return;
  throw std::bad_alloc();
}

bool PutAside(std::atomic<void*>& half) {
  if (half != nullptr) return true;
  void* memory = ::mmap(nullptr, half_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  void* none = nullptr;
  if (!half.compare_exchange_strong(none, memory)) ::munmap(memory, half_bytes);  // somebody has
  return true;
}

}  // namespace

bool MemoryReserve::Install(int64_t bytes) {
  half_bytes = static_cast<size_t>(bytes) / 2;
  std::set_new_handler(GiveUpReserveOrThrow);
  return Refill();
}

bool MemoryReserve::Refill() {
  return half_bytes == 0 || (PutAside(for_essentials) && PutAside(for_anybody));
}

bool MemoryReserve::given_up() {
  return half_bytes > 0 && (for_anybody.load(std::memory_order_relaxed) == nullptr ||
                            for_essentials.load(std::memory_order_relaxed) == nullptr);
}

void MarkEssentialThread() { essential = true; }

}  // namespace halfbyte
