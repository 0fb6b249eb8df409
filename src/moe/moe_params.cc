#include "moe/moe_params.h"

#include "base/check.h"

namespace halfbyte {

std::string_view ArithmeticName(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kRef:
      return "ref";
    case Arithmetic::kW4a16:
      return "w4a16";
    case Arithmetic::kW4a4:
      return "w4a4";
    case Arithmetic::kW4a8:
      return "w4a8";
  }
  return "?";
}

PackedArithmetic PackedArithmeticOf(Arithmetic arithmetic, PackedFormat weights) {
  switch (arithmetic) {
    case Arithmetic::kW4a4:
      return PackedArithmetic::kW4a4;
    case Arithmetic::kW4a8:
      return PackedArithmetic::kW4a8;
    case Arithmetic::kW4a16:
      return Bf16ArithmeticOf(weights);
    case Arithmetic::kRef:
      break;  // has no packed form
  }
  HB_CHECK(false, "no packed arithmetic for {}", ArithmeticName(arithmetic));
}

std::optional<Arithmetic> ArithmeticFromName(std::string_view name) {
  for (const Arithmetic a : kArithmetics) {
    if (ArithmeticName(a) == name) return a;
  }
  return std::nullopt;
}

}  // namespace halfbyte
