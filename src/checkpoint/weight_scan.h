// One pass over a weight's bytes: what a loader could trip on, and how well the format is used.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tensor/tensor_view.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

// Smallest and largest value met; nothing met while low > high.
struct ValueRange {
  float low = 1;
  float high = 0;

  bool empty() const { return low > high; }
  void Add(float value) { Merge({value, value}); }
  void Merge(const ValueRange& other);
};

struct ScaleScan {
  int64_t scales = 0;
  int64_t zero = 0;        // block scale 0: the block is zero whatever its codes
  int64_t at_max = 0;      // E4M3 0x7e; normal for the block that holds the tensor's largest value
  int64_t bad = 0;         // NaN, a sign, infinity; for E8M0 0xff; for fp32 scales also 0
  int64_t first_bad = -1;  // row-major index
  ValueRange range;        // of the good ones that are not 0, without the global scale
};

// All-good for formats without scales. Touches the scales only.
ScaleScan ScanScales(const WeightMatrix& weight);

struct ElementScan {
  int64_t elements = 0;
  int64_t zero = 0;
  int64_t at_max = 0;                  // 4-bit codes of magnitude 6, FP8 bytes of magnitude 448
  int64_t at_max_under_max_scale = 0;  // of those, in NVFP4 blocks whose scale is 0x7e
  int64_t zero_blocks = 0;             // 4-bit formats: blocks whose codes are all zero
  int64_t bad = 0;                     // NaN or infinity
  int64_t first_bad = -1;
};

ElementScan ScanElements(const WeightMatrix& weight);

// The same for a plain F32, BF16 or F16 tensor.
ElementScan ScanFloats(const TensorView& view);

// Element `index` of an F32, BF16 or F16 tensor.
float FloatAt(const TensorView& view, int64_t index);

// tid2eid: [vocabulary, K], each row K different experts in [0, experts). Nothing if sound, else a
// sentence about the first bad row.
std::optional<std::string> RouterTableProblem(const TensorView& table, int64_t experts);

}  // namespace halfbyte
