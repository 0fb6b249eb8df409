// Memory of this process and this machine as the kernel counts it.
#pragma once

#include <cstdint>
#include <optional>

namespace halfbyte {

// The largest resident memory so far, mapped files included; 0 if the kernel does not say.
int64_t PeakResidentBytes();

// Private writable memory of this process, touched or not: heap, anonymous mappings and stacks of
// threads, as RLIMIT_DATA limits it; 0 if the kernel does not say.
int64_t PrivateBytes();

// What may still be allocated without pushing somebody out: the machine's estimate, or the control
// group's limit if that is lower. Nothing if the kernel does not say.
std::optional<int64_t> AvailableMemoryBytes();

}  // namespace halfbyte
