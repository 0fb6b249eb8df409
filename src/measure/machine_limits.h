// What this machine can do at most, with the threads of a context, at the moment it is asked.
// Shared and virtual machines change speed within seconds: measure limits between the runs they are
// compared with, and repeat.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "device/context.h"
#include "measure/peak_loops.h"

namespace halfbyte {

using MemorySpan = std::span<const std::byte>;

// Seconds to read every byte of `memory` once.
double SecondsToRead(const Context& context, std::span<const MemorySpan> memory);

// Operations per second of all threads together, over some milliseconds.
double MeasurePeak(const Context& context, const PeakLoop& loop);

// As /proc/cpuinfo names it; empty if it does not.
std::string CpuModelName();

}  // namespace halfbyte
