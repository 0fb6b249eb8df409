#include "base/heap.h"

#include <malloc.h>

namespace halfbyte {

void ReturnLargeBlocks() {
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargeBlock));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(2 * kLargeBlock));
}

void UseFewHeaps() { mallopt(M_ARENA_MAX, 2); }

void ReturnFreePages() { malloc_trim(0); }

}  // namespace halfbyte
