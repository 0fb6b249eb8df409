#include "checkpoint/weight_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/fp16.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

void MarkBad(int64_t index, int64_t& bad, int64_t& first_bad) {
  if (bad++ == 0) first_bad = index;
}

// One-byte scales: a histogram says everything but where the first bad one is.
ScaleScan ScanByteScales(const uint8_t* scales, int64_t count, bool e8m0) {
  std::array<int64_t, 256> histogram{};
  for (int64_t i = 0; i < count; ++i) ++histogram[scales[i]];
  const auto is_bad = [e8m0](int byte) {
    return e8m0 ? byte == kE8m0Nan : !IsBlockScale(static_cast<uint8_t>(byte));
  };
  ScaleScan scan;
  scan.scales = count;
  for (int byte = 0; byte < 256; ++byte) {
    const int64_t times = histogram[static_cast<size_t>(byte)];
    if (times == 0) continue;
    if (is_bad(byte)) {
      scan.bad += times;
      continue;
    }
    const auto bits = static_cast<uint8_t>(byte);
    const float value = e8m0 ? E8m0ToFloat(bits) : E4m3ToFloat(bits);
    if (value == 0) {
      scan.zero = times;
    } else {
      scan.range.Add(value);
    }
    if (!e8m0 && byte == 0x7e) scan.at_max = times;
  }
  if (scan.bad > 0) scan.first_bad = std::find_if(scales, scales + count, is_bad) - scales;
  return scan;
}

// F32 or BF16 scales of FP8 weights.
ScaleScan ScanFloatScales(const TensorView& scales) {
  ScaleScan scan;
  scan.scales = scales.elements();
  for (int64_t i = 0; i < scan.scales; ++i) {
    const float value = FloatAt(scales, i);
    if (std::isfinite(value) && value > 0) {
      scan.range.Add(value);
    } else {
      MarkBad(i, scan.bad, scan.first_bad);
    }
  }
  return scan;
}

ElementScan ScanCodes(const WeightMatrix& weight, int64_t block) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(weight.data);
  const int64_t block_bytes = block / 2;
  const int64_t blocks = weight.rows * weight.columns / block;
  const bool nvfp4 = weight.format == WeightFormat::kNvfp4;
  ElementScan scan;
  scan.elements = weight.rows * weight.columns;
  for (int64_t b = 0; b < blocks; ++b) {
    int64_t zero = 0;
    int64_t at_max = 0;
    for (int64_t i = b * block_bytes; i < (b + 1) * block_bytes; ++i) {
      const int even = bytes[i] & 7;
      const int odd = (bytes[i] >> 4) & 7;
      zero += (even == 0) + (odd == 0);
      at_max += (even == 7) + (odd == 7);
    }
    scan.at_max += at_max;
    if (nvfp4 && weight.scales[b] == std::byte{0x7e}) scan.at_max_under_max_scale += at_max;
    scan.zero += zero;
    scan.zero_blocks += zero == block;
  }
  return scan;
}

ElementScan ScanFp8(const WeightMatrix& weight) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(weight.data);
  ElementScan scan;
  scan.elements = weight.rows * weight.columns;
  for (int64_t i = 0; i < scan.elements; ++i) {
    const int magnitude = bytes[i] & 0x7f;
    scan.zero += magnitude == 0;
    scan.at_max += magnitude == 0x7e;
    if (magnitude == 0x7f) MarkBad(i, scan.bad, scan.first_bad);
  }
  return scan;
}

DType PlainDType(WeightFormat format) {
  return format == WeightFormat::kF32    ? DType::kF32
         : format == WeightFormat::kBf16 ? DType::kBf16
                                         : DType::kF16;
}

}  // namespace

void ValueRange::Merge(const ValueRange& other) {
  if (other.empty()) return;
  if (empty()) {
    *this = other;
    return;
  }
  low = std::min(low, other.low);
  high = std::max(high, other.high);
}

ScaleScan ScanScales(const WeightMatrix& weight) {
  if (weight.scales == nullptr) return {};
  const int64_t count = weight.scale_rows() * weight.scale_columns();
  const auto* bytes = reinterpret_cast<const uint8_t*>(weight.scales);
  if (weight.format == WeightFormat::kNvfp4) return ScanByteScales(bytes, count, false);
  if (weight.scale_dtype == DType::kF8E8m0) return ScanByteScales(bytes, count, true);
  const auto size = static_cast<size_t>(count * DTypeSize(weight.scale_dtype));
  return ScanFloatScales({weight.scale_dtype, {count}, {weight.scales, size}});
}

ElementScan ScanElements(const WeightMatrix& weight) {
  switch (weight.format) {
    case WeightFormat::kNvfp4:
      return ScanCodes(weight, kNvfp4Block);
    case WeightFormat::kMxfp4:
      return ScanCodes(weight, kMxfp4Block);
    case WeightFormat::kFp8:
      return ScanFp8(weight);
    default:
      break;
  }
  const auto size = static_cast<size_t>(weight.rows * weight.row_bytes());
  return ScanFloats(
      {PlainDType(weight.format), {weight.rows, weight.columns}, {weight.data, size}});
}

ElementScan ScanFloats(const TensorView& view) {
  ElementScan scan;
  scan.elements = view.elements();
  for (int64_t i = 0; i < scan.elements; ++i) {
    const float value = FloatAt(view, i);
    scan.zero += value == 0;
    if (!std::isfinite(value)) MarkBad(i, scan.bad, scan.first_bad);
  }
  return scan;
}

float FloatAt(const TensorView& view, int64_t index) {
  switch (view.dtype) {
    case DType::kF32:
      return view.Load<float>(index);
    case DType::kBf16:
      return ToFloat(view.Load<Bf16>(index));
    case DType::kF16:
      return ToFloat(view.Load<Fp16>(index));
    default:
      HB_CHECK(false, "{} holds no floating-point numbers", DTypeName(view.dtype));
  }
}

std::optional<std::string> RouterTableProblem(const TensorView& table, int64_t experts) {
  const int64_t choices = table.shape.at(1);
  std::vector<int64_t> row(static_cast<size_t>(choices));
  for (int64_t token = 0; token < table.shape[0]; ++token) {
    for (int64_t j = 0; j < choices; ++j) {
      const int64_t at = token * choices + j;
      const int64_t id =
          table.dtype == DType::kI64 ? table.Load<int64_t>(at) : table.Load<int32_t>(at);
      if (id < 0 || id >= experts) {
        return fmt::format("row {} names expert {}, outside 0..{}", token, id, experts - 1);
      }
      if (std::find(row.begin(), row.begin() + j, id) != row.begin() + j) {
        return fmt::format("row {} names expert {} twice", token, id);
      }
      row[static_cast<size_t>(j)] = id;
    }
  }
  return std::nullopt;
}

}  // namespace halfbyte
