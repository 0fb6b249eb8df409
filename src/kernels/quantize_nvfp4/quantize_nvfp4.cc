#include "kernels/quantize_nvfp4/quantize_nvfp4.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "kernels/quantize_nvfp4/row_kernels.h"
#include "numerics/fp16.h"

namespace halfbyte {
namespace {

using quantize_nvfp4::FormatKernels;
using quantize_nvfp4::KernelsFor;

constexpr int64_t kElementsPerPiece = 64 * 1024;  // a thread's bite: some ten microseconds

// Of a transpose: elements that are transposed before they are quantized, and columns of the source
// that a thread takes at once, a cache line of bf16.
constexpr int64_t kTransposedPiece = 1024 * 1024;
constexpr int64_t kTransposedTile = 32;

int64_t GrainRows(int64_t k) {
  return std::max<int64_t>(1, kElementsPerPiece / std::max<int64_t>(k, 1));
}

// The rows of a source as the row kernels take them. fp16 goes through a row of fp32.
class RowReader {
 public:
  explicit RowReader(const FloatRows& source) : source_(source) {
    if (source.dtype == DType::kF16) row_.resize(static_cast<size_t>(source.k));
  }

  // Valid until the next call.
  const std::byte* Row(int64_t r) {
    const std::byte* row = source_.row(r);
    if (source_.dtype != DType::kF16) return row;
    for (int64_t i = 0; i < source_.k; ++i) {
      Fp16 x;
      std::memcpy(&x, row + i * int64_t{sizeof(x)}, sizeof(x));
      row_[static_cast<size_t>(i)] = ToFloat(x);
    }
    return reinterpret_cast<const std::byte*>(row_.data());
  }

 private:
  const FloatRows& source_;
  std::vector<float> row_;
};

const FormatKernels& SourceKernels(const Context& context, DType dtype) {
  const auto& kernels = KernelsFor(context.isa());
  return dtype == DType::kBf16 ? kernels.bf16 : kernels.f32;
}

quantize_nvfp4::QuantizeRow RowQuantizer(const Context& context, DType dtype, Nvfp4Rule rule) {
  switch (rule) {
    case Nvfp4Rule::kAmaxTo6:
      return SourceKernels(context, dtype).quantize;
    case Nvfp4Rule::k4Over6:
      return SourceKernels(context, dtype).quantize_4_over_6;
    case Nvfp4Rule::kFlushEarly:
      return quantize_nvfp4::FlushEarlyRow(dtype);
  }
  return nullptr;
}

Status CheckSource(const FloatRows& source) {
  if (source.k % kNvfp4Block != 0) {
    return MakeError(
        "NVFP4 needs rows of a multiple of {} elements, not {}: keep such a matrix unquantized",
        kNvfp4Block, source.k);
  }
  if (!IsFloat(source.dtype)) {
    return MakeError("NVFP4 is made of F32, BF16 or F16, not of {}", DTypeName(source.dtype));
  }
  return {};
}

// Runs quantize_row(reader, row, stats) over all rows and joins what the pieces saw.
template <class QuantizeOneRow>
Nvfp4BlockStats OverRows(const Context& context, const FloatRows& source,
                         const QuantizeOneRow& quantize_row) {
  Nvfp4BlockStats total;
  std::mutex mutex;
  context.pool().ParallelFor(source.rows, GrainRows(source.k), [&](int64_t begin, int64_t end) {
    RowReader reader(source);
    Nvfp4BlockStats stats;
    for (int64_t r = begin; r < end; ++r) quantize_row(reader.Row(r), r, &stats);
    const std::lock_guard lock(mutex);
    total += stats;
  });
  return total;
}

template <class T>
void DequantizeTo(const Context& context, const FormatKernels& kernels, const Nvfp4View& matrix,
                  T* out) {
  const int64_t blocks = matrix.k / kNvfp4Block;
  HB_CHECK(matrix.k % kNvfp4Block == 0, "k = {}", matrix.k);
  context.pool().ParallelFor(matrix.rows, GrainRows(matrix.k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels.dequantize(matrix.row_codes(r), matrix.row_scales(r), blocks,
                         matrix.global_scale.value(),
                         reinterpret_cast<std::byte*>(out + r * matrix.k));
    }
  });
}

}  // namespace

FloatRows FloatRows::Of(MatrixView<const float> matrix) {
  return {DType::kF32, matrix.rows, matrix.columns, reinterpret_cast<const std::byte*>(matrix.data),
          matrix.columns * 4};
}

FloatRows FloatRows::Of(MatrixView<const Bf16> matrix) {
  return {DType::kBf16, matrix.rows, matrix.columns,
          reinterpret_cast<const std::byte*>(matrix.data), matrix.columns * 2};
}

Result<FloatRows> FloatRows::Of(const TensorView& tensor, std::string_view name) {
  if (!IsFloat(tensor.dtype)) {
    return MakeError("{}: NVFP4 is made of F32, BF16 or F16, not of {}", name,
                     DTypeName(tensor.dtype));
  }
  if (tensor.shape.empty()) {
    return MakeError("{}: a scalar has no row that NVFP4 could divide into blocks", name);
  }
  const int64_t k = tensor.shape.back();
  const int64_t rows = ElementCount(std::span(tensor.shape).first(tensor.shape.size() - 1));
  return FloatRows{tensor.dtype, rows, k, tensor.bytes.data(), k * DTypeSize(tensor.dtype)};
}

MatrixAmax AmaxOf(const Context& context, const FloatRows& source) {
  HB_CHECK(IsFloat(source.dtype), "dtype {}", DTypeName(source.dtype));
  const FormatKernels& kernels = SourceKernels(context, source.dtype);
  const int64_t blocks = source.k / kNvfp4Block;
  const int64_t element_bytes = source.dtype == DType::kBf16 ? 2 : 4;  // fp16 arrives as fp32
  const auto tail_bytes = static_cast<size_t>((source.k - blocks * kNvfp4Block) * element_bytes);
  MatrixAmax total;
  std::mutex mutex;
  context.pool().ParallelFor(source.rows, GrainRows(source.k), [&](int64_t begin, int64_t end) {
    RowReader reader(source);
    MatrixAmax part;
    for (int64_t r = begin; r < end; ++r) {
      const std::byte* row = reader.Row(r);
      kernels.amax(row, blocks, &part);
      if (tail_bytes == 0) continue;
      std::byte block[kNvfp4Block * sizeof(float)] = {};  // zeros change no maximum
      std::memcpy(block, row + (blocks * kNvfp4Block) * element_bytes, tail_bytes);
      kernels.amax(block, 1, &part);
    }
    const std::lock_guard lock(mutex);
    total.amax = std::max(total.amax, part.amax);
    total.non_finite += part.non_finite;
  });
  return total;
}

GlobalScale GlobalScaleFor(float amax, Nvfp4Rule rule) {
  return rule == Nvfp4Rule::k4Over6 ? GlobalScale::FromAmax4Over6(amax)
                                    : GlobalScale::FromAmax(amax);
}

Result<Nvfp4BlockStats> QuantizeNvfp4(const Context& context, const FloatRows& source,
                                      GlobalScale global_scale, Nvfp4Rule rule, Nvfp4Output out) {
  HB_RETURN_IF_ERROR(CheckSource(source));
  if (!global_scale.IsUsable()) {
    return MakeError("the global scale {} is no finite positive number", global_scale.value());
  }
  const auto quantize = RowQuantizer(context, source.dtype, rule);
  const int64_t blocks = source.k / kNvfp4Block;
  return OverRows(context, source, [&](const std::byte* row, int64_t r, Nvfp4BlockStats* stats) {
    quantize(row, blocks, global_scale.value(), out.codes + r * (source.k / 2),
             out.block_scales + r * blocks, stats);
  });
}

Result<Nvfp4BlockStats> QuantizeNvfp4Transposed(const Context& context, const FloatRows& source,
                                                GlobalScale global_scale, Nvfp4Rule rule,
                                                Nvfp4Output out) {
  const int64_t k = source.rows;
  FloatRows piece{.dtype = source.dtype, .k = k, .row_bytes = k * DTypeSize(source.dtype)};
  HB_RETURN_IF_ERROR(CheckSource(piece));
  const auto size = static_cast<size_t>(DTypeSize(source.dtype));
  const int64_t columns = std::max(kTransposedTile, kTransposedPiece / std::max<int64_t>(k, 1));
  std::vector<std::byte> transposed(static_cast<size_t>(std::min(columns, source.k) * k) * size);
  piece.data = transposed.data();
  Nvfp4BlockStats stats;
  for (int64_t first = 0; first < source.k; first += columns) {
    piece.rows = std::min(columns, source.k - first);
    context.pool().ParallelFor(piece.rows, kTransposedTile, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < k; ++i) {
        const std::byte* from = source.row(i) + static_cast<size_t>(first) * size;
        for (int64_t c = begin; c < end; ++c) {
          std::memcpy(transposed.data() + static_cast<size_t>(c * k + i) * size,
                      from + static_cast<size_t>(c) * size, size);
        }
      }
    });
    HB_ASSIGN_OR_RETURN(
        const Nvfp4BlockStats seen,
        QuantizeNvfp4(context, piece, global_scale, rule,
                      {out.codes + first * (k / 2), out.block_scales + first * (k / kNvfp4Block)}));
    stats += seen;
  }
  return stats;
}

Result<QuantizedMatrix> QuantizeNvfp4FromAmax(const Context& context, const FloatRows& source,
                                              Nvfp4Rule rule) {
  HB_RETURN_IF_ERROR(CheckSource(source));
  const GlobalScale global_scale = GlobalScaleFor(AmaxOf(context, source).amax, rule);
  QuantizedMatrix result{Nvfp4Matrix(source.rows, source.k, global_scale), {}};
  HB_ASSIGN_OR_RETURN(result.stats, QuantizeNvfp4(context, source, global_scale, rule,
                                                  Nvfp4Output::Of(result.matrix)));
  return result;
}

Result<Nvfp4BlockStats> QuantizeNvfp4PerRow(const Context& context, const FloatRows& source,
                                            Nvfp4Rule rule, Nvfp4Output out,
                                            GlobalScale* row_scales) {
  HB_RETURN_IF_ERROR(CheckSource(source));
  const FormatKernels& kernels = SourceKernels(context, source.dtype);
  const auto quantize = RowQuantizer(context, source.dtype, rule);
  const int64_t blocks = source.k / kNvfp4Block;
  return OverRows(context, source, [&](const std::byte* row, int64_t r, Nvfp4BlockStats* stats) {
    MatrixAmax amax;
    kernels.amax(row, blocks, &amax);
    row_scales[r] = GlobalScaleFor(amax.amax, rule);
    quantize(row, blocks, row_scales[r].value(), out.codes + r * (source.k / 2),
             out.block_scales + r * blocks, stats);
  });
}

void DequantizeNvfp4(const Context& context, const Nvfp4View& matrix, float* out) {
  DequantizeTo(context, KernelsFor(context.isa()).f32, matrix, out);
}

void DequantizeNvfp4(const Context& context, const Nvfp4View& matrix, Bf16* out) {
  DequantizeTo(context, KernelsFor(context.isa()).bf16, matrix, out);
}

namespace quantize_nvfp4 {

const RowKernels& KernelsFor(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      break;
    case CpuIsa::kAvx2:
      return simd_avx2::kRowKernels;
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return simd_avx512::kRowKernels;
  }
  return kScalarKernels;
}

}  // namespace quantize_nvfp4
}  // namespace halfbyte
