// Loops of nothing but the instruction that does the most arithmetic, from registers: the peak that
// a kernel's speed is compared with. One source file for each instruction set; which may run here
// is asked of cpuid.
#pragma once

#include <array>
#include <cstdint>

namespace halfbyte {

// Independent sums of a round: more than latency times throughput of any machine so far.
inline constexpr int kPeakSums = 12;

// Before a loop: the number that every lane of a sum starts with. After it: its lanes, added up.
// Callers give each sum another number, at run time. Of sums that start alike a compiler computes
// one and copies it, and what remains waits for its own result each round.
using PeakSums = std::array<int64_t, kPeakSums>;

struct PeakLoop {
  const char* instruction;
  double operations_per_round;  // a multiply-add counts as two
  // Each multiply-add adds 1: what the sums grow by is what was done (exact below 2^24 a lane).
  void (*run)(int64_t rounds, PeakSums& sums);
};

PeakLoop Fp32PeakLoop();  // vfmadd231ps, on every machine
// vpdpbusd and vdpbf16ps in 512 bits; Fp32PeakLoop() where the machine lacks them.
PeakLoop Int8PeakLoop();
PeakLoop Bf16PeakLoop();

// Each in the file of its name.
extern const PeakLoop kFp32PeakLoop;
extern const PeakLoop kInt8Avx512PeakLoop;
extern const PeakLoop kBf16Avx512PeakLoop;

}  // namespace halfbyte
