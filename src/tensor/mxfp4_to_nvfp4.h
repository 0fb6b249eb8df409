// MXFP4 matrices as NVFP4 without loss (nvfp4.md §4.1): the codes stay, every scale 2^k of a block
// of 32 becomes the E4M3 scale 2^(k - k_max + 8) of two blocks of 16, and the global scale is
// 2^(k_max - 8). Exact for blocks at most 17 binades below the largest.
//
// Two passes, so that several tensors can share one global scale: the fused gate_up product of an
// expert has one, so take the larger byte of gate and up for both.
//
//   HB_ASSIGN_OR_RETURN(auto gate_max, LargestMxfp4Scale(gate, "...w1.weight"));
//   HB_ASSIGN_OR_RETURN(auto up_max, LargestMxfp4Scale(up, "...w3.weight"));
//   const auto largest = std::max(gate_max, up_max);  // an absent one is the smaller
//   Mxfp4AsNvfp4 gate_nvfp4 = Mxfp4ToNvfp4(gate, largest);
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/nvfp4_matrix.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

// The largest E8M0 byte among the blocks that are not all zero; absent if all are. An error naming
// the tensor and the position if a scale byte is 0xff (NaN). `source` is kMxfp4, columns a multiple
// of 32.
Result<std::optional<uint8_t>> LargestMxfp4Scale(const WeightMatrix& source, std::string_view name);

struct Mxfp4AsNvfp4 {
  Nvfp4Matrix matrix;
  // Blocks of 32, as row * (columns / 32) + block, more than 17 binades below the largest:
  // quantized anew by the NVFP4 rule under the common global scale (where their scale byte rounds
  // to 0, so they become zero). Empty: source and result decode to the same numbers, bit for bit.
  std::vector<int64_t> inexact_blocks;

  bool lossless() const { return inexact_blocks.empty(); }
};

// `largest_scale` is what LargestMxfp4Scale said about this tensor, or the largest over all tensors
// that share the global scale. All-zero blocks keep their codes and get scale 0.
Mxfp4AsNvfp4 Mxfp4ToNvfp4(const WeightMatrix& source, std::optional<uint8_t> largest_scale);

}  // namespace halfbyte
