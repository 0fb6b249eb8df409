// What the variants for 4-bit weights know of a tile (packed_matrix.h) and of its activations.
// In an unnamed namespace for the reason that panel_driver.h gives.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace halfbyte::packed_kernels {
namespace {  // NOLINT(google-build-namespaces)

struct PackedTile {
  static constexpr int64_t kTileBytes = 576;
  static constexpr int64_t kCodes = 64;  // the first, after the scales
};

// With activations of IntTile<planes>.
template <int planes>
struct IntPackedTile : PackedTile {
  static constexpr int64_t kXTileBytes = planes * 64 + 32;
  static constexpr int64_t kBias = planes * 64;
  static constexpr int64_t kScale = kBias + 16;
  static constexpr float kLastFactor = planes == 1 ? 0x1p57f : 0x1p39f;
};

// 2 * value + 12 of every code.
inline __m128i BiasedCodes() {
  return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}

inline int32_t LoadInt32(const std::byte* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

}  // namespace
}  // namespace halfbyte::packed_kernels
