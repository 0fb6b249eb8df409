#include "measure/peak_loops.h"

namespace halfbyte {

PeakLoop Fp32PeakLoop() { return kFp32PeakLoop; }

PeakLoop Int8PeakLoop() {
  const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
  return here ? kInt8Avx512PeakLoop : kFp32PeakLoop;
}

PeakLoop Bf16PeakLoop() {
  const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
  return here ? kBf16Avx512PeakLoop : kFp32PeakLoop;
}

}  // namespace halfbyte
