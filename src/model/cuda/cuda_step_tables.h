// What the kernels of a step look up (kernels/device_step.h), as one piece of memory: filled on the
// host, copied to the device at once.
//
// Where something lies depends on the sizes alone, padding included: a captured graph finds every
// step of its sizes in the same places.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device_step.h"
#include "model/batch_item.h"
#include "model/program/model_ops.h"

namespace halfbyte {

struct StepSizes {
  StepShape shape;
  int64_t sequences = 0;

  // Of a batch, without padding.
  static StepSizes Of(std::span<const PlacedItem> batch);

  // Then the tables of wanted tokens are those of all.
  bool all_wanted() const { return shape.tokens[0] == shape.tokens[1]; }
  auto operator<=>(const StepSizes& other) const { return Key() <=> other.Key(); }
  bool operator==(const StepSizes& other) const { return Key() == other.Key(); }

 private:
  std::array<int64_t, 5> Key() const {
    return {shape.tokens[0], shape.tokens[1], shape.context[0], shape.context[1], sequences};
  }
};

class CudaStepTables {
 public:
  // Over memory of either side, of bytes(), aligned to 16 bytes; null: for bytes() alone.
  CudaStepTables(const StepSizes& sizes, std::byte* memory);
  int64_t bytes() const { return words_ * int64_t{sizeof(int32_t)}; }

  DeviceTokens of(TokenSet tokens) const {
    return tokens == TokenSet::kAll || sizes_.all_wanted() ? all_ : wanted_;
  }
  const DeviceSequences& sequences() const { return sequences_; }

  // The batch's, and padding up to the sizes; the memory is of the host. Without padding if not all
  // tokens are wanted.
  void Fill(std::span<const PlacedItem> batch);

 private:
  int32_t* Take(int64_t count);
  void FillTokens(DeviceTokens tokens, int64_t at, int64_t sequence, int64_t position,
                  std::span<const int32_t> ids, int64_t source_row);

  const StepSizes sizes_;
  int32_t* const memory_;
  int64_t words_ = 0;
  DeviceTokens all_, wanted_;
  DeviceSequences sequences_;
};

}  // namespace halfbyte
