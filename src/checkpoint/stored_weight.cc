#include "checkpoint/stored_weight.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/check.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"
#include "tensor/scale_check.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// What 4-bit codes come in: bytes of two, or their own dtype with the same bytes.
bool HoldsCodes(DType dtype) {
  return dtype == DType::kU8 || dtype == DType::kI8 || dtype == DType::kF4;
}

// E8M0 comes under its own dtype or in a U8 container.
bool IsE8m0(DType dtype) { return dtype == DType::kF8E8m0 || dtype == DType::kU8; }

tl::unexpected<Error> Wrong(const CheckpointTensor& tensor, const std::string& why) {
  return MakeError("{}: {}", tensor.name(), why);
}

Result<const CheckpointTensor*> Require(const ModuleTensors& tensors, Part part) {
  const CheckpointTensor* tensor = tensors.Get(part);
  if (tensor != nullptr) return tensor;
  return Wrong(*tensors.Main(), fmt::format("its {} is missing", PartName(part)));
}

// Any part outside `allowed` would be dropped silently by a careless loader.
Status RefuseOthers(const ModuleTensors& tensors, const char* format,
                    std::initializer_list<Part> allowed) {
  for (int i = 0; i < kParts; ++i) {
    const auto part = static_cast<Part>(i);
    if (tensors.Get(part) == nullptr || tensors.Get(part)->info == tensors.Main()->info) continue;
    if (std::find(allowed.begin(), allowed.end(), part) != allowed.end()) continue;
    return Wrong(*tensors.Main(),
                 fmt::format("{} {} does not go with a {}", tensors.Main()->info->dtype_name(),
                             format, PartName(part)));
  }
  return {};
}

Status RequireScales(const CheckpointTensor& scales, bool right_dtype, const char* dtype,
                     const Shape& shape) {
  if (!right_dtype) {
    return Wrong(scales, fmt::format("is {}, but block scales of this format are {}",
                                     scales.info->dtype_name(), dtype));
  }
  if (scales.info->shape != shape) {
    return Wrong(scales, fmt::format("has shape {}, but {} belongs to these codes",
                                     ShapeString(scales.info->shape), ShapeString(shape)));
  }
  return {};
}

// Two codes per byte; `block` elements share a scale.
Result<WeightLayout> FourBitLayout(const ModuleTensors& tensors, StoredFormat format, int64_t block,
                                   Part scale_part) {
  const CheckpointTensor& main = *tensors.Main();
  const int64_t columns = main.info->shape[1] * (main.info->dtype == DType::kF4 ? 1 : 2);
  WeightLayout layout{format, main.info->shape[0], columns, scale_part, 1, block};
  if (layout.columns % block != 0) {
    return Wrong(
        main, fmt::format("{} columns are no multiple of the block of {}", layout.columns, block));
  }
  HB_ASSIGN_OR_RETURN(const CheckpointTensor* scales, Require(tensors, scale_part));
  const bool nvfp4 = block == kNvfp4Block;
  const DType dtype = scales->info->dtype;
  HB_RETURN_IF_ERROR(RequireScales(*scales, nvfp4 ? dtype == DType::kF8E4m3 : IsE8m0(dtype),
                                   nvfp4 ? "F8_E4M3" : "F8_E8M0 or U8",
                                   {layout.rows, layout.columns / block}));
  return layout;
}

Result<WeightLayout> PackedLayout(const ModuleTensors& tensors) {
  HB_ASSIGN_OR_RETURN(const CheckpointTensor* scales, Require(tensors, Part::kWeightScale));
  const bool global = tensors.Get(Part::kWeightGlobalScale) != nullptr;
  if (!global && scales->info->dtype == DType::kF8E4m3) {
    return Wrong(*tensors.Main(), "its weight_global_scale is missing");
  }
  HB_RETURN_IF_ERROR(
      RefuseOthers(tensors, global ? "NVFP4" : "MXFP4",
                   {Part::kWeightScale, Part::kWeightGlobalScale, Part::kInputGlobalScale}));
  return global ? FourBitLayout(tensors, StoredFormat::kCtNvfp4, kNvfp4Block, Part::kWeightScale)
                : FourBitLayout(tensors, StoredFormat::kCtMxfp4, kMxfp4Block, Part::kWeightScale);
}

Result<WeightLayout> ContainerLayout(const ModuleTensors& tensors) {
  if (tensors.Get(Part::kScale) != nullptr) {
    HB_RETURN_IF_ERROR(RefuseOthers(tensors, "MXFP4", {Part::kScale}));
    return FourBitLayout(tensors, StoredFormat::kDeepSeekMxfp4, kMxfp4Block, Part::kScale);
  }
  if (tensors.Get(Part::kWeightScale) == nullptr && tensors.Get(Part::kWeightScale2) == nullptr) {
    return Wrong(*tensors.Main(), fmt::format("is {} (4-bit codes), but has neither scale nor "
                                              "weight_scale and weight_scale_2",
                                              tensors.Main()->info->dtype_name()));
  }
  HB_RETURN_IF_ERROR(Require(tensors, Part::kWeightScale2));
  HB_RETURN_IF_ERROR(
      RefuseOthers(tensors, "NVFP4", {Part::kWeightScale, Part::kWeightScale2, Part::kInputScale}));
  return FourBitLayout(tensors, StoredFormat::kModelOptNvfp4, kNvfp4Block, Part::kWeightScale);
}

// Which block a scale shape means; nothing if none fits.
std::optional<WeightLayout> Fp8Blocks(int64_t rows, int64_t columns, const Shape& scale) {
  WeightLayout layout{StoredFormat::kFp8Tensor, rows, columns, Part::kScale, rows, columns};
  if (scale.empty() || (scale.size() == 1 && scale[0] == 1)) return layout;
  layout.format = StoredFormat::kFp8Channel;
  layout.scale_block_rows = 1;
  if (scale == Shape{rows} || scale == Shape{rows, 1}) return layout;
  layout.format = StoredFormat::kFp8Block;
  for (const auto& [block_rows, block_columns] :
       {std::pair<int64_t, int64_t>{128, 128}, {1, 128}, {1, 32}}) {
    layout.scale_block_rows = block_rows;
    layout.scale_block_columns = block_columns;
    if (scale == Shape{CeilDiv(rows, block_rows), CeilDiv(columns, block_columns)}) return layout;
  }
  return std::nullopt;
}

Result<WeightLayout> Fp8Layout(const ModuleTensors& tensors) {
  const CheckpointTensor& main = *tensors.Main();
  const CheckpointTensor* scales = nullptr;
  Part scale_part = Part::kScale;
  for (const Part part : {Part::kScale, Part::kWeightScale, Part::kWeightScaleInv}) {
    if (tensors.Get(part) == nullptr) continue;
    if (scales != nullptr) {
      return Wrong(main, fmt::format("has both {} and {}", PartName(scale_part), PartName(part)));
    }
    scales = tensors.Get(part);
    scale_part = part;
  }
  if (scales == nullptr) {
    return Wrong(main, "is F8_E4M3, but has no scale, weight_scale or weight_scale_inv");
  }
  HB_RETURN_IF_ERROR(RefuseOthers(tensors, "FP8", {scale_part, Part::kInputScale}));
  const DType dtype = scales->info->dtype;
  if (!IsE8m0(dtype) && dtype != DType::kF32 && dtype != DType::kBf16) {
    return Wrong(*scales, fmt::format("is {}, but FP8 scales are F8_E8M0, F32 or BF16",
                                      scales->info->dtype_name()));
  }
  std::optional<WeightLayout> layout =
      Fp8Blocks(main.info->shape[0], main.info->shape[1], scales->info->shape);
  if (!layout) {
    return Wrong(
        *scales,
        fmt::format("has shape {}, which fits no block size (128x128, 1x128, 1x32, per row, "
                    "per tensor) of a weight {}",
                    ShapeString(scales->info->shape), ShapeString(main.info->shape)));
  }
  layout->scale_part = scale_part;
  return *layout;
}

// Usable as a factor and as a divisor: 1e-39 has no fp32 reciprocal.
Result<float> ReadScale(const CheckpointTensor& tensor) {
  HB_ASSIGN_OR_RETURN(const float value, ReadScalar(tensor));
  if (!std::isfinite(value) || !(value > 0) || !std::isfinite(1.0f / value)) {
    return Wrong(tensor, fmt::format("is {}, but a scale must be positive and have a finite "
                                     "reciprocal (was the model calibrated?)",
                                     value));
  }
  return value;
}

// An optional scale in either convention, as a multiplier.
Result<std::optional<GlobalScale>> ReadEither(const ModuleTensors& tensors, Part multiplier,
                                              Part divisor) {
  if (const CheckpointTensor* tensor = tensors.Get(multiplier)) {
    HB_ASSIGN_OR_RETURN(const float value, ReadScale(*tensor));
    return GlobalScale(value);
  }
  if (const CheckpointTensor* tensor = tensors.Get(divisor)) {
    HB_ASSIGN_OR_RETURN(const float value, ReadScale(*tensor));
    return GlobalScale::FromEncode(EncodeScale(value));
  }
  return std::optional<GlobalScale>();
}

WeightFormat ComputeFormat(StoredFormat format) {
  switch (format) {
    case StoredFormat::kF32:
      return WeightFormat::kF32;
    case StoredFormat::kBf16:
      return WeightFormat::kBf16;
    case StoredFormat::kF16:
      return WeightFormat::kF16;
    case StoredFormat::kFp8Tensor:
    case StoredFormat::kFp8Channel:
    case StoredFormat::kFp8Block:
      return WeightFormat::kFp8;
    case StoredFormat::kModelOptNvfp4:
    case StoredFormat::kCtNvfp4:
      return WeightFormat::kNvfp4;
    case StoredFormat::kDeepSeekMxfp4:
    case StoredFormat::kCtMxfp4:
      return WeightFormat::kMxfp4;
  }
  HB_CHECK(false, "format {}", static_cast<int>(format));
}

StoredFormat FloatFormat(DType dtype) {
  return dtype == DType::kF32    ? StoredFormat::kF32
         : dtype == DType::kBf16 ? StoredFormat::kBf16
                                 : StoredFormat::kF16;
}

}  // namespace

const char* StoredFormatName(StoredFormat format) {
  switch (format) {
    case StoredFormat::kF32:
      return "f32";
    case StoredFormat::kBf16:
      return "bf16";
    case StoredFormat::kF16:
      return "f16";
    case StoredFormat::kFp8Tensor:
      return "fp8-tensor";
    case StoredFormat::kFp8Channel:
      return "fp8-channel";
    case StoredFormat::kFp8Block:
      return "fp8-block";
    case StoredFormat::kModelOptNvfp4:
      return "nvfp4-modelopt";
    case StoredFormat::kCtNvfp4:
      return "nvfp4-ct";
    case StoredFormat::kDeepSeekMxfp4:
      return "mxfp4-deepseek";
    case StoredFormat::kCtMxfp4:
      return "mxfp4-ct";
  }
  return "?";
}

std::string PlainFormatName(DType dtype) {
  std::string name(DTypeName(dtype));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

const CheckpointTensor* ModuleTensors::Main() const {
  const CheckpointTensor* packed = Get(Part::kWeightPacked);
  return packed != nullptr ? packed : Get(Part::kWeight);
}

Result<WeightLayout> DetectLayout(const ModuleTensors& tensors) {
  const CheckpointTensor* main = tensors.Main();
  if (main == nullptr) {
    for (const CheckpointTensor& part : tensors.parts) {
      if (part.info != nullptr) return Wrong(part, "the weight it belongs to is missing");
    }
    return MakeError("a module without tensors");
  }
  if (tensors.Get(Part::kWeight) != nullptr && tensors.Get(Part::kWeightPacked) != nullptr) {
    return Wrong(*main, "there is a weight beside it; which one counts?");
  }
  const Shape& shape = main->info->shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
    return Wrong(*main, fmt::format("has shape {}, but a matrix is needed", ShapeString(shape)));
  }
  const DType dtype = main->info->dtype;
  if (tensors.Get(Part::kWeightPacked) != nullptr) {
    if (HoldsCodes(dtype)) return PackedLayout(tensors);
    return Wrong(*main, fmt::format("is {}, but packed codes are U8", main->info->dtype_name()));
  }
  if (HoldsCodes(dtype)) return ContainerLayout(tensors);
  if (dtype == DType::kF8E4m3) return Fp8Layout(tensors);
  if (!IsFloat(dtype)) {
    return Wrong(*main, fmt::format("{} is no format of a weight", main->info->dtype_name()));
  }
  HB_RETURN_IF_ERROR(RefuseOthers(tensors, "unquantized weight", {}));
  return WeightLayout{FloatFormat(dtype), shape[0], shape[1], Part::kScale, 1, 0};
}

std::span<const std::byte> StoredWeight::scale_bytes() const {
  if (matrix.scales == nullptr) return {};
  return {matrix.scales, static_cast<size_t>(matrix.scale_rows() * matrix.scale_columns() *
                                             DTypeSize(matrix.scale_dtype))};
}

Status StoredWeight::CheckScales() const { return halfbyte::CheckScales(matrix, name); }

void StoredWeight::DropPages() const {
  if (release) return release();
  data_file->DropPages({matrix.data, static_cast<size_t>(matrix.rows * matrix.row_bytes())});
  DropScalePages();
}

void StoredWeight::DropScalePages() const {
  if (scales_file != nullptr) scales_file->DropPages(scale_bytes());
}

Result<StoredWeight> ReadStoredWeight(const ModuleTensors& tensors) {
  HB_ASSIGN_OR_RETURN(const WeightLayout layout, DetectLayout(tensors));
  const CheckpointTensor& main = *tensors.Main();
  StoredWeight weight;
  weight.format = layout.format;
  weight.name = main.name();
  weight.data_file = main.file;
  weight.matrix.format = ComputeFormat(layout.format);
  weight.matrix.rows = layout.rows;
  weight.matrix.columns = layout.columns;
  weight.matrix.data = main.file->Bytes(*main.info).data();
  const CheckpointTensor* scales = tensors.Get(layout.scale_part);
  if (scales == nullptr) return weight;
  weight.scales_file = scales->file;
  weight.matrix.scales = scales->file->Bytes(*scales->info).data();
  weight.matrix.scale_dtype =
      scales->info->dtype == DType::kU8 ? DType::kF8E8m0 : scales->info->dtype;
  weight.matrix.scale_block_rows = layout.scale_block_rows;
  weight.matrix.scale_block_columns = layout.scale_block_columns;
  HB_ASSIGN_OR_RETURN(const std::optional<GlobalScale> global,
                      ReadEither(tensors, Part::kWeightScale2, Part::kWeightGlobalScale));
  if (global) weight.matrix.global_scale = *global;
  HB_ASSIGN_OR_RETURN(weight.input_scale,
                      ReadEither(tensors, Part::kInputScale, Part::kInputGlobalScale));
  return weight;
}

Result<StoredWeight> SliceFusedExperts(const CheckpointTensor& fused, int64_t expert, int64_t begin,
                                       int64_t count) {
  const Shape& shape = fused.info->shape;
  if (shape.size() != 3 || !IsFloat(fused.info->dtype)) {
    return Wrong(fused, fmt::format("is {} {}, but fused experts are F32, BF16 or F16 with three "
                                    "dimensions",
                                    fused.info->dtype_name(), ShapeString(shape)));
  }
  if (expert < 0 || expert >= shape[0] || begin < 0 || begin + count > shape[1]) {
    return Wrong(fused, fmt::format("shape {} has no rows {}..{} of expert {}", ShapeString(shape),
                                    begin, begin + count, expert));
  }
  StoredWeight weight;
  weight.format = FloatFormat(fused.info->dtype);
  weight.name = fmt::format("{}[{}, {}:{}]", fused.name(), expert, begin, begin + count);
  weight.data_file = fused.file;
  WeightMatrix& matrix = weight.matrix;
  matrix.format = ComputeFormat(weight.format);
  matrix.rows = count;
  matrix.columns = shape[2];
  matrix.data =
      fused.file->Bytes(*fused.info).data() + (expert * shape[1] + begin) * matrix.row_bytes();
  return weight;
}

Result<float> ReadScalar(const CheckpointTensor& tensor) {
  const Shape& shape = tensor.info->shape;
  if (tensor.info->dtype != DType::kF32 || shape.size() > 1 || ElementCount(shape) != 1) {
    return Wrong(tensor, fmt::format("is {} {}, but must be one F32 number",
                                     tensor.info->dtype_name(), ShapeString(shape)));
  }
  return tensor.View().Load<float>(0);
}

}  // namespace halfbyte
