// Memory put aside for the threads without which a service cannot go on (its engine, its
// supervisor, what computes for them): where an allocation of theirs fails, the reserve is given up
// and the allocation tried again. Everywhere else std::bad_alloc is thrown, and whoever owns the
// work that asked for too much answers for it. Without Install an allocation that fails is what
// std::get_new_handler makes of it.
#pragma once

#include <cstdint>

namespace halfbyte {

class MemoryReserve {
 public:
  // Once, before other threads start. False: not even this much can be had.
  static bool Install(int64_t bytes);

  // Puts memory aside again if it was given up. False if there is none: what takes memory and can
  // wait should.
  static bool Refill();
  // Whether the reserve is given up, and memory short.
  static bool given_up();
};

// The calling thread is one of those, from now on.
void MarkEssentialThread();

}  // namespace halfbyte
