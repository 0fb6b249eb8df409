// Sizes that the tensor core of sm_90a sets: a warpgroup multiplies strips of 64 rows of a weight,
// 64 columns at a time; of such a group of columns 8 rows are 1,024 contiguous bytes of bf16 in
// shared memory (an atom), whose 16-byte pieces are exchanged: piece c of row r lies at c ^ (r %
// 8).
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte::sm90 {

inline constexpr int64_t kStripRows = 64;
inline constexpr int64_t kGroupK = 64;
inline constexpr int64_t kAtomBytes = 1024;

HB_HD constexpr int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace halfbyte::sm90
