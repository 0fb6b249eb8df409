// Room for the rows of experts.
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

// The most rows that `slots` slots can need on `experts` experts when each non-empty expert's rows
// are padded to a multiple of `alignment`: reached, not estimated (LAY-05).
HB_HD constexpr int64_t PaddedRowsBound(int64_t slots, int64_t experts, int64_t alignment) {
  const int64_t used = slots < experts ? slots : experts;
  return alignment * (used + (slots - used) / alignment);
}

}  // namespace halfbyte
