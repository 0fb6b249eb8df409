// One weight matrix as a checkpoint stores it. The format is decided from dtypes and sibling
// tensors alone (table in checkpoints.md §2.1); what the config claims is a hint for reports.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_name.h"
#include "numerics/global_scale.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

enum class StoredFormat : uint8_t {
  kF32,
  kBf16,
  kF16,
  kFp8Tensor,      // weight F8_E4M3, one scale
  kFp8Channel,     // one scale per row
  kFp8Block,       // scale [ceil(o/bo), ceil(i/bi)], E8M0, F32 or BF16; 128x128, 1x128 or 1x32
  kModelOptNvfp4,  // weight + weight_scale + weight_scale_2 (multiplier)
  kCtNvfp4,        // weight_packed + weight_scale + weight_global_scale (divisor)
  kDeepSeekMxfp4,  // weight + scale
  kCtMxfp4,        // weight_packed + weight_scale
};
inline constexpr int kStoredFormats = static_cast<int>(StoredFormat::kCtMxfp4) + 1;

// "modelopt-nvfp4", "fp8-block", ...
const char* StoredFormatName(StoredFormat format);
// The same for a tensor that is no matrix: "f32", "i64", ...
std::string PlainFormatName(DType dtype);

// The tensors of one module by part; info is null where there is none.
struct ModuleTensors {
  std::array<CheckpointTensor, kParts> parts;

  const CheckpointTensor* Get(Part part) const {
    const CheckpointTensor& tensor = parts[static_cast<size_t>(part)];
    return tensor.info == nullptr ? nullptr : &tensor;
  }
  // The tensor that carries the elements (weight or weight_packed), null if only scales are there.
  const CheckpointTensor* Main() const;
};

// Header-only description: format and logical shape.
struct WeightLayout {
  StoredFormat format = StoredFormat::kF32;
  int64_t rows = 0;
  int64_t columns = 0;              // logical
  Part scale_part = Part::kScale;   // of the block scales, if the format has any
  int64_t scale_block_rows = 1;     // kFp8*
  int64_t scale_block_columns = 0;  // kFp8*
};

// Decides the format of a two-dimensional module and checks shapes and dtypes of all its parts
// against each other. Reads no data. Errors name the tensor and the missing or unexpected sibling.
Result<WeightLayout> DetectLayout(const ModuleTensors& tensors);

struct StoredWeight {
  StoredFormat format = StoredFormat::kF32;
  WeightMatrix matrix;                     // a view of the bytes
  std::optional<GlobalScale> input_scale;  // as a multiplier, whatever the file's convention
  std::string name;                        // of the tensor with the elements, for reports
  const SafetensorsFile* data_file = nullptr;
  const SafetensorsFile* scales_file = nullptr;  // null for unquantized formats
  std::function<void()> release;  // of a weight that is in no file: its bytes go for good

  std::span<const std::byte> scale_bytes() const;  // empty for unquantized formats
  // Reads all scale bytes: scales that are NaN, infinite or have a sign where there is none are
  // errors (tensor/scale_check.h).
  Status CheckScales() const;
  // After use: the pages of codes and block scales leave resident memory. (A file's come back when
  // they are read again.)
  void DropPages() const;
  void DropScalePages() const;
};

// DetectLayout, then the view; reads the scalar scales only. Errors also: a global or input scale
// that is NaN, infinite, zero, negative or too small to have a reciprocal (LDR-06).
Result<StoredWeight> ReadStoredWeight(const ModuleTensors& tensors);

// Expert `expert` of an unquantized fused tensor [E, R, C]: its rows [begin, begin + count).
Result<StoredWeight> SliceFusedExperts(const CheckpointTensor& fused, int64_t expert, int64_t begin,
                                       int64_t count);

// The only element of a 0-d or [1] F32 tensor. Errors: other dtype or shape.
Result<float> ReadScalar(const CheckpointTensor& tensor);

}  // namespace halfbyte
