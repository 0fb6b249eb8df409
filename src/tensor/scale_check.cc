#include "tensor/scale_check.h"

#include <algorithm>
#include <cmath>

#include "numerics/e4m3.h"
#include "numerics/e8m0.h"

namespace halfbyte {
namespace {

// The first byte above `largest`; the sweep over good bytes has no early exit, so it runs in SIMD.
Status CheckAtMost(std::span<const std::byte> scales, uint8_t largest, int64_t columns,
                   std::string_view name, std::string_view format) {
  constexpr size_t kPiece = 1 << 16;
  for (size_t begin = 0; begin < scales.size(); begin += kPiece) {
    const auto piece = scales.subspan(begin, std::min(kPiece, scales.size() - begin));
    uint8_t highest = 0;
    for (const std::byte byte : piece) highest = std::max(highest, static_cast<uint8_t>(byte));
    if (highest <= largest) continue;
    const auto bad = std::find_if(piece.begin(), piece.end(), [&](std::byte byte) {
      return static_cast<uint8_t>(byte) > largest;
    });
    const auto index = static_cast<int64_t>(begin) + (bad - piece.begin());
    return MakeError(
        "{}: byte {:#04x} at [{}, {}] is no {} scale; the file is damaged or holds "
        "another format",
        name, static_cast<uint8_t>(*bad), index / columns, index % columns, format);
  }
  return {};
}

}  // namespace

Status CheckE4m3BlockScales(std::span<const std::byte> scales, int64_t columns,
                            std::string_view name) {
  return CheckAtMost(scales, 0x7e, columns, name, "unsigned E4M3");
}

Status CheckE8m0Scales(std::span<const std::byte> scales, int64_t columns, std::string_view name) {
  return CheckAtMost(scales, kE8m0Nan - 1, columns, name, "E8M0");
}

Status CheckScales(const WeightMatrix& weight, std::string_view name) {
  if (weight.scales == nullptr) return {};
  const int64_t columns = weight.scale_columns();
  const std::span bytes(weight.scales, static_cast<size_t>(weight.scale_rows() * columns *
                                                           DTypeSize(weight.scale_dtype)));
  if (weight.format == WeightFormat::kNvfp4) return CheckE4m3BlockScales(bytes, columns, name);
  if (weight.scale_dtype == DType::kF8E8m0) return CheckE8m0Scales(bytes, columns, name);
  for (int64_t r = 0; r < weight.rows; r += weight.scale_block_rows) {
    for (int64_t c = 0; c < weight.columns; c += weight.scale_block_columns) {
      if (!std::isfinite(Fp8WeightScale(weight, r, c))) {
        return MakeError("{}: the scale of [{}, {}] is not finite", name, r, c);
      }
    }
  }
  return {};
}

}  // namespace halfbyte
