#include "tensor/mxfp4_to_nvfp4.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

constexpr int64_t kCodeBytes = kMxfp4Block / 2;

// Codes 0 and 8 only.
bool AllZero(const std::byte* codes) {
  uint64_t words[2];
  static_assert(sizeof(words) == kCodeBytes);
  std::memcpy(words, codes, sizeof(words));
  return ((words[0] | words[1]) & 0x7777777777777777u) == 0;
}

int64_t Blocks(const WeightMatrix& source) {
  HB_CHECK(source.format == WeightFormat::kMxfp4 && source.columns % kMxfp4Block == 0,
           "{} [{}, {}]", WeightFormatName(source.format), source.rows, source.columns);
  return source.rows * source.scale_columns();
}

// The NVFP4 rule on both halves of a block that the common global scale cannot express.
void Requantize(const std::byte* source_codes, uint8_t source_scale, GlobalScale global_scale,
                uint8_t* codes, uint8_t* block_scales) {
  float x[kMxfp4Block];
  for (int i = 0; i < kMxfp4Block; ++i) {
    const uint8_t code = UnpackE2m1(reinterpret_cast<const uint8_t*>(source_codes), i);
    x[i] = DequantizeMxfp4(code, source_scale);
  }
  for (int half = 0; half < 2; ++half) {
    const Nvfp4Block block = QuantizeNvfp4Block(x + half * kNvfp4Block, global_scale);
    std::memcpy(codes + half * int64_t{sizeof(block.codes)}, block.codes, sizeof(block.codes));
    block_scales[half] = block.scale;
  }
}

}  // namespace

Result<std::optional<uint8_t>> LargestMxfp4Scale(const WeightMatrix& source,
                                                 std::string_view name) {
  std::optional<uint8_t> largest;
  const int64_t blocks = Blocks(source);
  for (int64_t b = 0; b < blocks; ++b) {
    const auto scale = static_cast<uint8_t>(source.scales[b]);
    if (scale == kE8m0Nan) {
      return MakeError(
          "{}: scale byte 0xff (NaN) for the block of 32 at [{}, {}]; the file is "
          "damaged or its scales are not E8M0",
          name, b / source.scale_columns(), b % source.scale_columns());
    }
    if (scale > largest.value_or(0) || !largest) {
      if (!AllZero(source.data + b * kCodeBytes)) largest = scale;
    }
  }
  return largest;
}

Mxfp4AsNvfp4 Mxfp4ToNvfp4(const WeightMatrix& source, std::optional<uint8_t> largest_scale) {
  const int64_t blocks = Blocks(source);
  const GlobalScale global_scale =
      largest_scale ? LosslessGlobalScale(*largest_scale) : GlobalScale(1.0f);
  Mxfp4AsNvfp4 result{Nvfp4Matrix(source.rows, source.columns, global_scale), {}};
  uint8_t* codes = result.matrix.codes();
  uint8_t* block_scales = result.matrix.block_scales();
  if (blocks > 0) std::memcpy(codes, source.data, static_cast<size_t>(blocks * kCodeBytes));
  for (int64_t b = 0; b < blocks; ++b) {
    const std::byte* source_codes = source.data + b * kCodeBytes;
    if (AllZero(source_codes)) continue;  // the scales are 0 already
    const auto scale = static_cast<uint8_t>(source.scales[b]);
    HB_CHECK(largest_scale && scale <= *largest_scale, "scale {} of block {} above the largest {}",
             scale, b, largest_scale.value_or(0));
    const uint8_t block_scale = LosslessBlockScale(scale, *largest_scale);
    if (block_scale != 0) {
      block_scales[2 * b] = block_scales[2 * b + 1] = block_scale;
    } else {
      Requantize(source_codes, scale, global_scale, codes + b * kCodeBytes, block_scales + 2 * b);
      result.inexact_blocks.push_back(b);
    }
  }
  return result;
}

}  // namespace halfbyte
