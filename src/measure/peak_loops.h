// Loops of nothing but the instruction that does the most arithmetic, from registers: the peak that
// a kernel's speed is compared with. One source file for each instruction set; which may run here
// is asked of cpuid.
#pragma once

#include <cstdint>

namespace halfbyte {

struct PeakLoop {
  const char* instruction;
  double operations_per_round;  // a multiply-add counts as two
  void (*run)(int64_t rounds);
};

PeakLoop Fp32PeakLoop();  // vfmadd231ps, on every machine
// vpdpbusd and vdpbf16ps in 512 bits; Fp32PeakLoop() where the machine lacks them.
PeakLoop Int8PeakLoop();
PeakLoop Bf16PeakLoop();

// Each in the file of its name.
extern const PeakLoop kFp32PeakLoop;
extern const PeakLoop kInt8Avx512PeakLoop;
extern const PeakLoop kBf16Avx512PeakLoop;

// Independent sums per round: more than latency times throughput of any machine so far.
inline constexpr int kPeakSums = 12;

}  // namespace halfbyte
