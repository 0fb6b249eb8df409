// Scale bytes of a file, checked before anything computes with them (moe-layer.md R105, R111).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

// E4M3 block scales: 0x00..0x7e. NaN (0x7f) and every byte with a sign are an error that names the
// tensor and the position, [index / columns, index % columns].
Status CheckE4m3BlockScales(std::span<const std::byte> scales, int64_t columns,
                            std::string_view name);

// E8M0 scales: 0xff (NaN) is an error of the same form.
Status CheckE8m0Scales(std::span<const std::byte> scales, int64_t columns, std::string_view name);

// All scales of a matrix, by its format: the above, and F32 and BF16 scales of FP8 are finite.
Status CheckScales(const WeightMatrix& weight, std::string_view name);

}  // namespace halfbyte
