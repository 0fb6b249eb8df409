// What a layer of experts computes: sizes, arithmetic, the activation function, scales.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/combine/combine_slots.h"
#include "kernels/packed_linear/packed_linear.h"
#include "kernels/swiglu/swiglu.h"
#include "numerics/global_scale.h"

namespace halfbyte {

enum class Arithmetic : uint8_t { kRef, kW4a16, kW4a4, kW4a8 };
inline constexpr Arithmetic kArithmetics[] = {Arithmetic::kRef, Arithmetic::kW4a16,
                                              Arithmetic::kW4a4, Arithmetic::kW4a8};
std::string_view ArithmeticName(Arithmetic arithmetic);  // "ref", "w4a16", "w4a4", "w4a8"
std::optional<Arithmetic> ArithmeticFromName(std::string_view name);

// Where the routing weight is applied, once: to h before `down` (the model's definition) or to the
// slot value after it.
enum class RoutingWeightPlacement : uint8_t { kBeforeDown, kAfterDown };

struct MoeParams {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Arithmetic arithmetic = Arithmetic::kW4a16;
  SwigluParams swiglu;
  RoutingWeightPlacement routing_weight = RoutingWeightPlacement::kBeforeDown;
  bool round_activations = true;
  // kW4a4: one static scale per stage, equal for all experts and ranks, headroom included
  // (StaticActivationScale); without one, each row's own amax / 2688.
  std::optional<GlobalScale> gate_up_input_scale;
  std::optional<GlobalScale> down_input_scale;
  // Multiplies the sum of a token's slot values, fp32 (ScaleOn::kOutput of the router).
  float output_scale = 1;
};

// How slot values become rows.
constexpr CombineRule CombineRuleOf(const MoeParams& params) {
  return {.weigh = params.routing_weight == RoutingWeightPlacement::kAfterDown,
          .output_scale = params.output_scale};
}

// Whether activations are quantized and weights must have four bits.
constexpr bool IsFourBitOnly(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kW4a4 || arithmetic == Arithmetic::kW4a8;
}

// How the packed kernels compute it with such weights; kRef aborts, it has no packed form.
PackedArithmetic PackedArithmeticOf(Arithmetic arithmetic, PackedFormat weights);

}  // namespace halfbyte
