// The loop of the peak_*.cc files, each of which compiles it with its own instruction set for a
// type `Isa` of its unnamed namespace:
//   Register, Lane            a sum, and one of the numbers in it
//   Start(int64_t)            every lane
//   AddProducts(Register)     one instruction; each of its multiply-adds adds 1 * 1
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "measure/peak_loops.h"

namespace halfbyte {

template <class Isa>
void RunPeakLoop(int64_t rounds, PeakSums& sums) {
  using Lane = typename Isa::Lane;
  typename Isa::Register registers[kPeakSums];
#pragma GCC unroll 12
  for (size_t i = 0; i < kPeakSums; ++i) registers[i] = Isa::Start(sums[i]);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kPeakSums; ++i) {
      registers[i] = Isa::AddProducts(registers[i]);
      asm("" : "+v"(registers[i]));  // or g++ 12 copies each sum twice a round
    }
  }
  Lane lanes[sizeof(registers[0]) / sizeof(Lane)];
#pragma GCC unroll 12
  for (size_t i = 0; i < kPeakSums; ++i) {
    std::memcpy(lanes, &registers[i], sizeof(lanes));
    sums[i] = 0;
    for (const Lane lane : lanes) sums[i] += static_cast<int64_t>(lane);
  }
}

}  // namespace halfbyte
