// Memory put aside for when there is none. Where an allocation fails, a part of the reserve is
// given up and the allocation tried again; where that does not suffice either, std::bad_alloc is
// thrown, and whoever owns the work that asked for too much answers for it.
//
// One half is for whoever comes first: what allocates in a destructor (JSON does) must not fail.
// The other is for the threads without which a service cannot go on (its engine, its supervisor,
// what computes for them), and for whoever is unwinding already.
//
// Without Install an allocation that fails is what std::get_new_handler makes of it.
#pragma once

#include <cstdint>

namespace halfbyte {

class MemoryReserve {
 public:
  // Both halves together. Once, before other threads start. False: not even this much can be had.
  static bool Install(int64_t bytes);

  // Puts memory aside again if some was given up; from any thread. False if there is none: what
  // takes memory and can wait should.
  static bool Refill();
  // Whether a part of it is given up, and memory short.
  static bool given_up();
};

// The calling thread is one of those, from now on.
void MarkEssentialThread();

}  // namespace halfbyte
