#include "moe/moe_workspace.h"

#include <algorithm>

#include "kernels/packed_linear/packed_linear.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

// Elements of the larger of the two matrices that are quantized.
int64_t QuantizedElements(const MoeLimits& limits) {
  return std::max(limits.tokens * limits.hidden, limits.slots() * limits.intermediate);
}

int64_t OperandBytes(const MoeLimits& limits) {
  return limits.slots() * MaxOperandRowBytes(std::max(limits.hidden, limits.intermediate));
}

template <class T>
std::unique_ptr<T[]> Allocate(int64_t count) {
  return std::make_unique_for_overwrite<T[]>(static_cast<size_t>(count));
}

}  // namespace

int64_t MoeWorkspace::Bytes(const MoeLimits& limits) {
  const int64_t floats = limits.tokens * limits.hidden + limits.slots() * limits.hidden +
                         2 * limits.slots() * limits.intermediate + limits.slots() + limits.tokens;
  const int64_t quantized = QuantizedElements(limits);
  return floats * int64_t{sizeof(float)} + limits.slots() * int64_t{sizeof(GlobalScale)} +
         limits.tokens * int64_t{sizeof(int32_t)} + quantized / 2 + quantized / kNvfp4Block +
         OperandBytes(limits);
}

MoeWorkspace::MoeWorkspace(const MoeLimits& limits_in)
    : limits(limits_in),
      plan(limits_in.slots(), limits_in.experts, kCpuRowAlignment),
      dense_ids(static_cast<size_t>(limits_in.tokens), 0),
      dense_weights(static_cast<size_t>(limits_in.tokens), 1.0f),
      activations(Allocate<float>(limits_in.tokens * limits_in.hidden)),
      operands(Allocate<std::byte>(OperandBytes(limits_in))),
      rows(Allocate<float>(limits_in.slots() * limits_in.hidden)),
      gate(Allocate<float>(limits_in.slots() * limits_in.intermediate)),
      up(Allocate<float>(limits_in.slots() * limits_in.intermediate)),
      codes(Allocate<uint8_t>(QuantizedElements(limits_in) / 2)),
      block_scales(Allocate<uint8_t>(QuantizedElements(limits_in) / kNvfp4Block)),
      quantized_scales(static_cast<size_t>(limits_in.slots()), GlobalScale(1.0f)),
      row_scales(Allocate<float>(limits_in.slots())) {}

}  // namespace halfbyte
