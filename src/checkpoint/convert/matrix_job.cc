#include "checkpoint/convert/matrix_job.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "numerics/mxfp4_block.h"
#include "tensor/mxfp4_to_nvfp4.h"

namespace halfbyte {
namespace {

constexpr int64_t kElementsPerPiece = 1 << 16;      // decoded at a time
constexpr size_t kBytesPerPiece = size_t{8} << 20;  // copied at a time

std::span<const std::byte> DataOf(const WeightMatrix& matrix) {
  return {matrix.data, static_cast<size_t>(matrix.rows * matrix.row_bytes())};
}

std::span<const std::byte> ScalesOf(const WeightMatrix& matrix) {
  return {matrix.scales, static_cast<size_t>(matrix.scale_rows() * matrix.scale_columns() *
                                             DTypeSize(matrix.scale_dtype))};
}

WeightMatrix AsWeight(const Nvfp4View& matrix) {
  WeightMatrix weight;
  weight.format = WeightFormat::kNvfp4;
  weight.rows = matrix.rows;
  weight.columns = matrix.k;
  weight.data = reinterpret_cast<const std::byte*>(matrix.codes);
  weight.scales = reinterpret_cast<const std::byte*>(matrix.block_scales);
  weight.global_scale = matrix.global_scale;
  return weight;
}

int64_t RowsPerPiece(int64_t columns) {
  return std::max<int64_t>(1, kElementsPerPiece / std::max<int64_t>(1, columns));
}

// Calls body(first_row, FloatRows) over the matrix: unquantized formats as they lie in the file,
// others decoded piece by piece. body returns Status.
template <class Body>
Status ForEachPiece(const WeightMatrix& weight, const Body& body) {
  const auto as_it_is = [&](DType dtype) {
    return body(0, FloatRows{dtype, weight.rows, weight.columns, weight.data, weight.row_bytes()});
  };
  if (weight.format == WeightFormat::kBf16) return as_it_is(DType::kBf16);
  if (weight.format == WeightFormat::kF16) return as_it_is(DType::kF16);
  if (weight.format == WeightFormat::kF32) return as_it_is(DType::kF32);
  const int64_t piece = RowsPerPiece(weight.columns);
  std::vector<float> values(static_cast<size_t>(piece * weight.columns));
  for (int64_t begin = 0; begin < weight.rows; begin += piece) {
    const int64_t count = std::min(piece, weight.rows - begin);
    for (int64_t r = 0; r < count; ++r) {
      DequantizeRow(weight, begin + r, values.data() + r * weight.columns);
    }
    HB_RETURN_IF_ERROR(
        body(begin, FloatRows::Of(MatrixView<const float>{values.data(), count, weight.columns})));
  }
  return {};
}

Status RefuseNonFinite(const float* row, int64_t r, int64_t columns, const std::string& name) {
  for (int64_t c = 0; c < columns; ++c) {
    if (!std::isfinite(row[c])) {
      return MakeError("{}: {} at [{}, {}]; the source is damaged or was not trained to the end",
                       name, row[c], r, c);
    }
  }
  return {};
}

// The first element that is NaN or infinite; there is one.
Status NonFiniteError(const StoredWeight& weight) {
  std::vector<float> row(static_cast<size_t>(weight.matrix.columns));
  for (int64_t r = 0; r < weight.matrix.rows; ++r) {
    DequantizeRow(weight.matrix, r, row.data());
    HB_RETURN_IF_ERROR(RefuseNonFinite(row.data(), r, weight.matrix.columns, weight.name));
  }
  HB_CHECK(false, "{}: counted as not finite, but all is finite", weight.name);
}

// Adds how far the decoded `result` is from the decoded `source`.
void Compare(const WeightMatrix& source, const WeightMatrix& result, MatrixReport* report) {
  std::vector<float> wanted(static_cast<size_t>(source.columns));
  std::vector<float> got(wanted.size());
  for (int64_t r = 0; r < source.rows; ++r) {
    DequantizeRow(source, r, wanted.data());
    DequantizeRow(result, r, got.data());
    for (int64_t c = 0; c < source.columns; ++c) {
      const auto i = static_cast<size_t>(c);
      report->error.Add(r * source.columns + c, got[i], wanted[i]);
      report->differing += got[i] != wanted[i];
    }
  }
}

class MatrixConverter {
 public:
  MatrixConverter(const ModelCheckpoint& model, const MatrixJob& job, TargetFormat format,
                  Nvfp4Rule rule, SafetensorsWriter& writer)
      : model_(model), job_(job), format_(format), rule_(rule), writer_(writer) {}

  Result<std::vector<MatrixReport>> Run() {
    std::vector<MatrixReport> reports;
    for (const MatrixPlan& plan : job_.matrices) {
      HB_ASSIGN_OR_RETURN(const StoredWeight weight, model_.FindWeight(plan.key));
      MatrixReport report;
      report.name = plan.name;
      report.action = job_.action;
      report.from = plan.from;
      report.rows = plan.rows;
      report.columns = plan.columns;
      report.source_bytes = plan.source_bytes;
      HB_RETURN_IF_ERROR(Convert(plan, weight, &report));
      weight.DropPages();
      reports.push_back(std::move(report));
    }
    return reports;
  }

 private:
  Status Convert(const MatrixPlan& plan, const StoredWeight& weight, MatrixReport* report) {
    switch (job_.action) {
      case ConvertAction::kQuantize:
        return Quantize(plan, weight, report);
      case ConvertAction::kLossless:
        return Losslessly(plan, weight, report);
      case ConvertAction::kRewrap:
        return Rewrap(plan, weight, report);
      case ConvertAction::kDequantize:
      case ConvertAction::kFuse:
        return Dequantize(plan, weight, report);
    }
    return {};
  }

  Status Quantize(const MatrixPlan& plan, const StoredWeight& weight, MatrixReport* report) {
    if (!amax_) {
      HB_ASSIGN_OR_RETURN(amax_, SharedAmax());
    }
    Nvfp4Matrix matrix(plan.rows, plan.columns, GlobalScaleFor(*amax_, rule_));
    HB_RETURN_IF_ERROR(
        ForEachPiece(weight.matrix, [&](int64_t begin, const FloatRows& piece) -> Status {
          const Nvfp4Output out = {
              matrix.codes() + begin * (plan.columns / 2),
              matrix.block_scales() + matrix.view().scale_layout().offset(begin, 0)};
          HB_ASSIGN_OR_RETURN(
              const Nvfp4BlockStats stats,
              QuantizeNvfp4(context_, piece, matrix.view().global_scale, rule_, out));
          report->blocks += stats;
          return {};
        }));
    return Write(plan, weight, matrix.view(), report);
  }

  // Over all matrices that share the global scale, wherever they lie.
  Result<float> SharedAmax() {
    float amax = 0;
    for (const ModuleKey& key : job_.scale_group) {
      HB_ASSIGN_OR_RETURN(const StoredWeight weight, model_.FindWeight(key));
      HB_RETURN_IF_ERROR(
          ForEachPiece(weight.matrix, [&](int64_t, const FloatRows& piece) -> Status {
            const MatrixAmax found = AmaxOf(context_, piece);
            if (found.non_finite > 0) return NonFiniteError(weight);
            amax = std::max(amax, found.amax);
            return {};
          }));
      weight.DropPages();
    }
    return amax;
  }

  Status Losslessly(const MatrixPlan& plan, const StoredWeight& weight, MatrixReport* report) {
    if (!mxfp4_scanned_) HB_RETURN_IF_ERROR(FindLargestMxfp4Scale());
    const Mxfp4AsNvfp4 converted = Mxfp4ToNvfp4(weight.matrix, largest_mxfp4_scale_);
    const int64_t blocks = plan.columns / kMxfp4Block;
    for (const int64_t b : converted.inexact_blocks) {
      report->requantized.push_back({b / blocks, b % blocks});
    }
    return Write(plan, weight, converted.matrix.view(), report);
  }

  Status FindLargestMxfp4Scale() {
    for (const ModuleKey& key : job_.scale_group) {
      HB_ASSIGN_OR_RETURN(const StoredWeight weight, model_.FindWeight(key));
      HB_ASSIGN_OR_RETURN(const auto largest, LargestMxfp4Scale(weight.matrix, weight.name));
      weight.DropScalePages();
      largest_mxfp4_scale_ = std::max(largest_mxfp4_scale_, largest);
      if (largest && LosslessGlobalScale(*largest_mxfp4_scale_).value() < 0x1p-126f) {
        return MakeError(
            "{}: its largest scale byte {} is 2^{}, so small that the global scale of NVFP4 would "
            "be a subnormal number; the source is damaged",
            weight.name, *largest, int{*largest} - 127);
      }
    }
    mxfp4_scanned_ = true;
    return {};
  }

  Status Rewrap(const MatrixPlan& plan, const StoredWeight& weight, MatrixReport* report) {
    HB_RETURN_IF_ERROR(weight.CheckScales());
    const auto* codes = reinterpret_cast<const uint8_t*>(weight.matrix.data);
    const auto* scales = reinterpret_cast<const uint8_t*>(weight.matrix.scales);
    return Write(plan, weight,
                 Nvfp4View{plan.rows, plan.columns, codes, scales, weight.matrix.global_scale},
                 report);
  }

  // Writes an NVFP4 matrix in the target's convention and compares it with the source.
  Status Write(const MatrixPlan& plan, const StoredWeight& weight, Nvfp4View matrix,
               MatrixReport* report) {
    const bool ct = format_ == TargetFormat::kCtNvfp4;
    const auto stored = [ct](GlobalScale scale) {
      return ct ? EncodeScale::FromGlobal(scale).value() : scale.value();
    };
    const WeightMatrix bytes = AsWeight(matrix);
    size_t output = plan.first_output;
    HB_RETURN_IF_ERROR(writer_.Write(output++, 0, DataOf(bytes)));
    HB_RETURN_IF_ERROR(writer_.Write(output++, 0, ScalesOf(bytes)));
    HB_RETURN_IF_ERROR(WriteScalar(output++, stored(matrix.global_scale)));
    if (plan.has_input_scale) {
      HB_RETURN_IF_ERROR(WriteScalar(output++, stored(InputScaleOf(weight))));
    }
    report->bytes = static_cast<int64_t>(DataOf(bytes).size() + ScalesOf(bytes).size()) +
                    int64_t{sizeof(float)} * (plan.has_input_scale ? 2 : 1);

    // From here on as a reader of the file sees it: a divisor comes back through a reciprocal.
    const GlobalScale exact = matrix.global_scale;
    if (ct) matrix.global_scale = GlobalScale::FromEncode(EncodeScale::FromGlobal(exact));
    report->global_scale = matrix.global_scale.value();
    report->same_global_scale = matrix.global_scale == exact;
    if (job_.action == ConvertAction::kRewrap && report->same_global_scale) {
      report->error.count = plan.rows * plan.columns;  // the same bytes, so the same numbers
      return {};
    }
    Compare(weight.matrix, AsWeight(matrix), report);
    return {};
  }

  // FP8 states its input's amax / 448, NVFP4 amax / 2688.
  static GlobalScale InputScaleOf(const StoredWeight& weight) {
    if (weight.matrix.format != WeightFormat::kFp8) return *weight.input_scale;
    return GlobalScale(weight.input_scale->value() / kE2m1Max);
  }

  Status WriteScalar(size_t output, float value) {
    return writer_.Write(output, 0, std::as_bytes(std::span(&value, 1)));
  }

  Status Dequantize(const MatrixPlan& plan, const StoredWeight& weight, MatrixReport* report) {
    HB_RETURN_IF_ERROR(weight.CheckScales());
    std::vector<float> values(static_cast<size_t>(plan.columns));
    std::vector<Bf16> rounded;
    report->bytes = plan.rows * plan.columns * int64_t{sizeof(Bf16)};
    const int64_t piece = RowsPerPiece(plan.columns);
    for (int64_t begin = 0; begin < plan.rows; begin += piece) {
      rounded.clear();
      for (int64_t r = begin; r < std::min(begin + piece, plan.rows); ++r) {
        DequantizeRow(weight.matrix, r, values.data());
        HB_RETURN_IF_ERROR(RefuseNonFinite(values.data(), r, plan.columns, weight.name));
        for (int64_t c = 0; c < plan.columns; ++c) {
          const float exact = values[static_cast<size_t>(c)];
          rounded.push_back(ToBf16(exact));
          const float value = ToFloat(rounded.back());
          report->error.Add(r * plan.columns + c, value, exact);
          report->differing += value != exact;
        }
      }
      HB_RETURN_IF_ERROR(writer_.Write(
          plan.first_output, plan.output_offset + begin * plan.columns * int64_t{sizeof(Bf16)},
          std::as_bytes(std::span(rounded))));
    }
    return {};
  }

  const ModelCheckpoint& model_;
  const MatrixJob& job_;
  const TargetFormat format_;
  const Nvfp4Rule rule_;
  SafetensorsWriter& writer_;
  ThreadPool alone_{1};
  Context context_{alone_};
  std::optional<float> amax_;  // of the scale group
  bool mxfp4_scanned_ = false;
  std::optional<uint8_t> largest_mxfp4_scale_;  // of the scale group; absent if all is zero
};

}  // namespace

Result<std::vector<MatrixReport>> ConvertMatrices(const ModelCheckpoint& model,
                                                  const MatrixJob& job, TargetFormat format,
                                                  Nvfp4Rule rule, SafetensorsWriter& writer) {
  return MatrixConverter(model, job, format, rule, writer).Run();
}

Status CopyTensor(const CopyJob& job, SafetensorsWriter& writer) {
  const std::span<const std::byte> bytes = job.source->View().bytes;
  std::vector<float> scales;
  for (size_t begin = 0; begin < bytes.size(); begin += kBytesPerPiece) {
    const auto piece = bytes.subspan(begin, std::min(kBytesPerPiece, bytes.size() - begin));
    if (job.e8m0_to_f32) {
      scales.clear();
      for (const std::byte scale : piece)
        scales.push_back(E8m0ToFloat(static_cast<uint8_t>(scale)));
      HB_RETURN_IF_ERROR(writer.Write(job.output, static_cast<int64_t>(begin * sizeof(float)),
                                      std::as_bytes(std::span(scales))));
    } else {
      HB_RETURN_IF_ERROR(writer.Write(job.output, static_cast<int64_t>(begin), piece));
    }
    job.source->file->DropPages(piece);
  }
  return {};
}

}  // namespace halfbyte
