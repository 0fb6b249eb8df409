#include "moe/cuda/cuda_expert_upload.h"

#include <fmt/format.h>

#include <optional>

#include "device/cuda/cuda_device.h"
#include "tensor/mxfp4_to_nvfp4.h"
#include "tensor/scale_check.h"

namespace halfbyte {
namespace {

int64_t CodeBytes(int64_t rows, int64_t columns) { return rows * columns / 2; }
int64_t StoredBytes(int64_t rows, int64_t columns) { return rows * columns / 16 * 9; }

}  // namespace

int64_t StoredExpertBytes(int64_t hidden, int64_t intermediate) {
  return 3 * StoredBytes(hidden, intermediate);
}

Result<ExpertUploader> ExpertUploader::Create(const MoeKernels& kernels, int64_t hidden,
                                              int64_t intermediate) {
  ExpertUploader uploader;
  uploader.kernels_ = &kernels;
  uploader.hidden_ = hidden;
  uploader.intermediate_ = intermediate;
  HB_ASSIGN_OR_RETURN(uploader.stream_, CudaStream::Create());
  HB_ASSIGN_OR_RETURN(
      uploader.staging_,
      DeviceBuffer::Allocate(StoredExpertBytes(hidden, intermediate), "an expert as stored"));
  return uploader;
}

// Puts codes and then scales at `to`.
Result<GlobalScale> ExpertUploader::Stage(const WeightMatrix& weight, int64_t rows, int64_t columns,
                                          std::string_view name, std::byte* to) {
  if (weight.rows != rows || weight.columns != columns) {
    return MakeError("{}: shape [{}, {}] where the configuration wants [{}, {}]", name, weight.rows,
                     weight.columns, rows, columns);
  }
  const auto copy = [&](const void* codes, const void* scales) -> Status {
    const auto code_bytes = static_cast<size_t>(CodeBytes(rows, columns));
    const auto scale_bytes = static_cast<size_t>(StoredBytes(rows, columns)) - code_bytes;
    HB_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(to, codes, code_bytes, cudaMemcpyHostToDevice, stream_.get()), name));
    return CudaStatus(cudaMemcpyAsync(to + code_bytes, scales, scale_bytes, cudaMemcpyHostToDevice,
                                      stream_.get()),
                      name);
  };
  if (weight.format == WeightFormat::kNvfp4) {
    HB_RETURN_IF_ERROR(CheckScales(weight, name));
    if (!weight.global_scale.IsUsable()) {
      return MakeError("{}: global scale {} is not finite and positive", name,
                       weight.global_scale.value());
    }
    HB_RETURN_IF_ERROR(copy(weight.data, weight.scales));
    return weight.global_scale;
  }
  if (weight.format != WeightFormat::kMxfp4) {
    return MakeError(
        "{}: a GPU computes from NVFP4 or MXFP4 weights, but these are {}; convert "
        "the checkpoint to NVFP4",
        name, WeightFormatName(weight.format));
  }
  HB_ASSIGN_OR_RETURN(const std::optional<uint8_t> largest, LargestMxfp4Scale(weight, name));
  const Mxfp4AsNvfp4 converted = Mxfp4ToNvfp4(weight, largest);
  if (!converted.lossless()) {
    return MakeError(
        "{}: the MXFP4 scales span too many binades to become NVFP4 without loss ({} blocks)", name,
        converted.inexact_blocks.size());
  }
  const Nvfp4View view = converted.matrix.view();
  HB_RETURN_IF_ERROR(copy(view.codes, view.block_scales));
  HB_RETURN_IF_ERROR(stream_.Synchronize());  // `converted` ends here
  return view.global_scale;
}

Result<ExpertGlobalScales> ExpertUploader::Upload(const ExpertWeights& expert,
                                                  std::string_view name, uint8_t* packed) {
  const int64_t each = StoredBytes(hidden_, intermediate_);
  const auto matrix = [&](int64_t index) {
    const auto* codes = staging_.as<uint8_t>() + index * each;
    return UploadedMatrix{codes, codes + CodeBytes(hidden_, intermediate_)};
  };
  const auto stage = [&](const WeightMatrix& weight, int64_t rows, int64_t columns, int64_t index,
                         std::string_view part) {
    return Stage(weight, rows, columns, fmt::format("{}, {}", name, part),
                 staging_.data() + index * each);
  };
  ExpertGlobalScales scales;
  HB_ASSIGN_OR_RETURN(scales.gate, stage(expert.gate, intermediate_, hidden_, 0, "gate"));
  HB_ASSIGN_OR_RETURN(scales.up, stage(expert.up, intermediate_, hidden_, 1, "up"));
  HB_ASSIGN_OR_RETURN(scales.down, stage(expert.down, hidden_, intermediate_, 2, "down"));
  HB_RETURN_IF_ERROR(CudaStatus(kernels_->Pack({matrix(0), matrix(1), matrix(2)}, hidden_,
                                               intermediate_, packed, stream_.get()),
                                name));
  HB_RETURN_IF_ERROR(stream_.Synchronize());
  return scales;
}

}  // namespace halfbyte
