// The allocator of this process: glibc's.
#pragma once

#include <cstdint>

namespace halfbyte {

inline constexpr int64_t kLargeBlock = int64_t{1} << 20;

// From now on blocks of kLargeBlock bytes and more are mappings of their own, which go back to the
// kernel when they are freed. By itself the allocator learns from the first large block that is
// freed that such blocks come and go, and puts later ones, up to 32 MB each, into the heaps of
// threads, of which hardly anything ever goes back: a server that has seen one large request in
// each of its threads kept 64 MB for each of them.
void ReturnLargeBlocks();

// From now on threads share two heaps. Each of their own reserves 64 MiB of addresses, which a
// limit on addresses counts.
void UseFewHeaps();

// Gives the kernel the pages that lie free in the heaps now, those between blocks in use too, which
// the allocator itself keeps for ever. Who allocates meanwhile may wait for that: some 100 ms where
// hundreds of megabytes are free.
void ReturnFreePages();

}  // namespace halfbyte
