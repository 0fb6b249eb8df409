// The row order in which a kernel with one gate_up matrix finds a channel's gate and up in one tile
// (moe-layer.md §3): 8 gate rows, the 8 up rows of the same channels, the next 8 gate rows, ... The
// same for codes and for linear block scales, as both are rows of bytes. Groups count logical rows,
// whatever a row's bytes mean.
#pragma once

#include <cstdint>
#include <span>

namespace halfbyte {

inline constexpr int64_t kGateUpGroup = 8;

// Where channel c's rows lie among 2 * channels.
constexpr int64_t InterleavedGateRow(int64_t c) {
  return c / kGateUpGroup * (2 * kGateUpGroup) + c % kGateUpGroup;
}
constexpr int64_t InterleavedUpRow(int64_t c) { return InterleavedGateRow(c) + kGateUpGroup; }

// gate, up [channels, row bytes] -> out [2 * channels, row bytes], and back. Aborts if channels is
// no multiple of 8 or the sizes disagree.
void InterleaveGateUp(std::span<const uint8_t> gate, std::span<const uint8_t> up, int64_t channels,
                      std::span<uint8_t> out);
void DeinterleaveGateUp(std::span<const uint8_t> interleaved, int64_t channels,
                        std::span<uint8_t> gate, std::span<uint8_t> up);

}  // namespace halfbyte
