// Waiting for a thread that is likely to be done soon.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <thread>

namespace halfbyte {

// Waits until done(value); returns that value. Whoever stores notifies all. Spins for a few hundred
// microseconds, giving way to other threads, then sleeps.
template <class T, class Done>
T Await(const std::atomic<T>& atomic, const Done& done) {
  constexpr int kSpins = 10'000;
  constexpr int kOffer = 100;  // every so often another thread may have the processor
  for (int i = 1;; ++i) {
    const T value = atomic.load(std::memory_order_acquire);
    if (done(value)) return value;
    if (i > kSpins) {
      atomic.wait(value, std::memory_order_acquire);
    } else if (i % kOffer == 0) {
      std::this_thread::yield();
    } else {
      _mm_pause();
    }
  }
}

}  // namespace halfbyte
