// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>

namespace halfbyte {

// The largest resident memory so far, mapped files included; 0 if the kernel does not say.
int64_t PeakResidentBytes();

// Private writable memory of this process, touched or not: heap, anonymous mappings and stacks of
// threads, as RLIMIT_DATA limits it; 0 if the kernel does not say.
int64_t PrivateBytes();

}  // namespace halfbyte
