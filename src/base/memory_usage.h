// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>

namespace halfbyte {

int64_t PeakResidentBytes();

}  // namespace halfbyte
