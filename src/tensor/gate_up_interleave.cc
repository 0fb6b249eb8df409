#include "tensor/gate_up_interleave.h"

#include <algorithm>

#include "base/check.h"

namespace halfbyte {
namespace {

// Bytes of a group of rows of one of the two.
int64_t GroupBytes(int64_t gate_bytes, int64_t up_bytes, int64_t both_bytes, int64_t channels) {
  HB_CHECK(channels >= 0 && channels % kGateUpGroup == 0, "{} channels, not groups of {}", channels,
           kGateUpGroup);
  HB_CHECK(gate_bytes == up_bytes && both_bytes == gate_bytes + up_bytes &&
               (channels == 0 ? gate_bytes == 0 : gate_bytes % channels == 0),
           "{} and {} bytes of {} channels against {}", gate_bytes, up_bytes, channels, both_bytes);
  return channels == 0 ? 0 : gate_bytes / channels * kGateUpGroup;
}

}  // namespace

void InterleaveGateUp(std::span<const uint8_t> gate, std::span<const uint8_t> up, int64_t channels,
                      std::span<uint8_t> out) {
  const int64_t bytes = GroupBytes(std::ssize(gate), std::ssize(up), std::ssize(out), channels);
  for (int64_t g = 0; g < channels / kGateUpGroup; ++g) {
    std::copy_n(gate.data() + g * bytes, bytes, out.data() + 2 * g * bytes);
    std::copy_n(up.data() + g * bytes, bytes, out.data() + (2 * g + 1) * bytes);
  }
}

void DeinterleaveGateUp(std::span<const uint8_t> interleaved, int64_t channels,
                        std::span<uint8_t> gate, std::span<uint8_t> up) {
  const int64_t bytes =
      GroupBytes(std::ssize(gate), std::ssize(up), std::ssize(interleaved), channels);
  for (int64_t g = 0; g < channels / kGateUpGroup; ++g) {
    std::copy_n(interleaved.data() + 2 * g * bytes, bytes, gate.data() + g * bytes);
    std::copy_n(interleaved.data() + (2 * g + 1) * bytes, bytes, up.data() + g * bytes);
  }
}

}  // namespace halfbyte
