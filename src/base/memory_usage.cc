#include "base/memory_usage.h"

#include "base/kernel_fields.h"

namespace halfbyte {

// Not getrusage: its peak is inherited from the program that started this one.
int64_t PeakResidentBytes() { return ReadKernelBytes("/proc/self/status", "VmHWM:").value_or(0); }

int64_t PrivateBytes() { return ReadKernelBytes("/proc/self/status", "VmData:").value_or(0); }

}  // namespace halfbyte
