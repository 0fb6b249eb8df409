#include "measure/moe_shape.h"

#include <charconv>

namespace halfbyte {
namespace {

// Sizes above these are typing errors; products of them stay within 64 bits.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxExperts = 1 << 16;

Result<MoeShape> ParseNumbers(std::string_view text) {
  int64_t numbers[4] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int i = 0; i < 4; ++i) {
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    const bool last = i == 3;
    if (error != std::errc() || (last ? next != end : next == end || *next != ',')) {
      return MakeError(
          "shape '{}' is neither v4-flash, v4-pro nor four numbers hidden,intermediate,"
          "experts,top_k",
          text);
    }
    at = next + (last ? 0 : 1);
  }
  return MoeShape{numbers[0], numbers[1], numbers[2], numbers[3]};
}

}  // namespace

Result<MoeShape> ParseMoeShape(std::string_view text) {
  if (text == "v4-flash") return MoeShape{4096, 2048, 256, 6};
  if (text == "v4-pro") return MoeShape{7168, 3072, 384, 6};
  HB_ASSIGN_OR_RETURN(const MoeShape shape, ParseNumbers(text));
  for (const auto& [name, width] : {std::pair<const char*, int64_t>{"hidden", shape.hidden},
                                    {"intermediate", shape.intermediate}}) {
    if (width < 16 || width > kMaxWidth || width % 16 != 0) {
      return MakeError("shape '{}': {} size {} is not a multiple of 16 from 16 to {}", text, name,
                       width, kMaxWidth);
    }
  }
  if (shape.experts < 1 || shape.experts > kMaxExperts) {
    return MakeError("shape '{}': {} experts are outside 1..{}", text, shape.experts, kMaxExperts);
  }
  if (shape.top_k < 1 || shape.top_k > shape.experts) {
    return MakeError("shape '{}': top_k {} is outside 1..{}, the number of experts", text,
                     shape.top_k, shape.experts);
  }
  return shape;
}

}  // namespace halfbyte
