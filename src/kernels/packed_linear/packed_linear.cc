#include "kernels/packed_linear/packed_linear.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/packed_linear/packed_kernels.h"

namespace halfbyte {
namespace {

// Of parallel loops: multiply-adds that outweigh the start of a piece, pieces per thread of a large
// product (so that a thread that lost its processor delays little), elements of rows to prepare.
constexpr int64_t kMinPiece = 65536;
constexpr int64_t kPiecesPerThread = 8;
constexpr int64_t kMinPreparation = 4096;

PackedFormat FormatOf(PackedArithmetic arithmetic) {
  return arithmetic == PackedArithmetic::kW16a16  ? PackedFormat::kBf16
         : arithmetic == PackedArithmetic::kW8a16 ? PackedFormat::kFp8
                                                  : PackedFormat::kFourBit;
}

// Of W8a16 and W16a16.
std::vector<PackedKernel> WideKernels(PackedArithmetic arithmetic, CpuIsa isa) {
  const bool fp8 = arithmetic == PackedArithmetic::kW8a16;
  std::vector<PackedKernel> kernels;
  const auto add = [&](const char* w8, void (*run8)(const PackedArguments&), const char* w16,
                       void (*run16)(const PackedArguments&), OperandFormat format) {
    kernels.push_back({fp8 ? w8 : w16, arithmetic, format, fp8 ? run8 : run16});
  };
  add("w8a16 reference", packed_kernels::W8a16Reference, "w16a16 reference",
      packed_kernels::W16a16Reference, OperandFormat::kFp32);
  if (isa >= CpuIsa::kAvx2) {
    add("w8a16 avx2", simd_avx2::W8a16Fp32, "w16a16 avx2", simd_avx2::W16a16Fp32,
        OperandFormat::kFp32);
  }
  // Same bits, so it is a matter of speed: Intel's vdpbf16ps is slower than its two fp32 units.
  const bool bf16 = isa >= CpuIsa::kAvx512 && __builtin_cpu_supports("avx512bf16") &&
                    __builtin_cpu_supports("avx512vbmi");
  const auto add_bf16 = [&] {
    add("w8a16 avx512-bf16", packed_kernels::W8a16Avx512Bf16, "w16a16 avx512-bf16",
        packed_kernels::W16a16Avx512Bf16, OperandFormat::kPairs);
  };
  if (bf16 && __builtin_cpu_is("intel")) add_bf16();
  if (isa >= CpuIsa::kAvx512) {
    add("w8a16 avx512", simd_avx512::W8a16Fp32, "w16a16 avx512", simd_avx512::W16a16Fp32,
        OperandFormat::kFp32);
  }
  if (bf16 && !__builtin_cpu_is("intel")) add_bf16();
  return kernels;
}

// Columns [begin, end) of y times the scale of w, rounded.
void Finish(const PackedProduct& product, int64_t begin, int64_t end) {
  const float scale = product.w->global_scale.value();
  const bool round = product.rounding == Rounding::kBf16;
  if (scale == 1 && !round) return;
  for (int64_t t = 0; t < product.y.rows; ++t) {
    float* y = product.y.row(t);
    if (scale != 1) {
      for (int64_t n = begin; n < end; ++n) y[n] *= scale;
    }
    if (round) {
      for (int64_t n = begin; n < end; ++n) y[n] = RoundToBf16(y[n]);
    }
  }
}

int64_t PanelsOfGroup(const PackedProduct& product, int64_t groups) {
  return (product.w->rows / groups + kPanelRows - 1) / kPanelRows;
}

const PackedKernel& KernelOf(const PackedMatrix& w, CpuIsa isa) {
  return BestPackedKernel(Bf16ArithmeticOf(w.format), isa);
}

// Rows of one group side by side.
void PrepareGroups(const Context& context, MatrixView<const float> x, int64_t groups,
                   const PackedKernel& kernel, std::byte* operands) {
  const int64_t columns = x.columns / groups;
  const int64_t row_bytes = OperandRowBytes(kernel.format, columns);
  const int64_t grain = std::max<int64_t>(1, kMinPreparation / std::max<int64_t>(1, columns));
  context.pool().ParallelFor(groups * x.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = x.row(i % x.rows) + i / x.rows * columns;
      PrepareRow(kernel, row, columns, operands + i * row_bytes);
    }
  });
}

// Columns [begin, end) of y, finished; `operands` are the rows of their group.
void MultiplyColumns(const PackedProduct& product, const PackedKernel& kernel,
                     const std::byte* operands, int64_t begin, int64_t end) {
  PackedLinearRange(kernel, *product.w, operands, begin, end, product.y);
  Finish(product, begin, end);
}

// Panels [begin, end) of a product, which are numbered through its groups.
void MultiplyPanels(const PackedProduct& product, const PackedKernel& kernel, int64_t groups,
                    const std::byte* operands, int64_t begin, int64_t end) {
  const int64_t panels = PanelsOfGroup(product, groups);
  const int64_t group_bytes = product.y.rows * OperandRowBytes(kernel.format, product.w->columns);
  while (begin < end) {
    const int64_t group = begin / panels;
    const int64_t stop = std::min(end, (group + 1) * panels);
    MultiplyColumns(product, kernel, operands + group * group_bytes, begin * kPanelRows,
                    std::min(stop * kPanelRows, product.w->rows));
    begin = stop;
  }
}

}  // namespace

std::vector<PackedKernel> PackedKernels(PackedArithmetic arithmetic, CpuIsa isa) {
  const bool avx2 = isa != CpuIsa::kScalar;
  const bool avx512 = isa >= CpuIsa::kAvx512;
  const bool vnni =
      avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  std::vector<PackedKernel> kernels;
  if (FormatOf(arithmetic) != PackedFormat::kFourBit) return WideKernels(arithmetic, isa);
  if (arithmetic != PackedArithmetic::kW4a16) {
    // Both run the same kernels; their operands differ.
    const bool a4 = arithmetic == PackedArithmetic::kW4a4;
    const auto add = [&](const char* name, void (*run)(const PackedArguments&)) {
      kernels.push_back({name, arithmetic, OperandFormat::kInt8, run});
    };
    add(a4 ? "w4a4 reference" : "w4a8 reference", packed_kernels::W4a4Reference);
    if (avx2) add(a4 ? "w4a4 avx2" : "w4a8 avx2", packed_kernels::W4a4Avx2);
    if (vnni) add(a4 ? "w4a4 avx512-vnni" : "w4a8 avx512-vnni", packed_kernels::W4a4Avx512Vnni);
    return kernels;
  }
  const auto add = [&](const char* name, OperandFormat format,
                       void (*run)(const PackedArguments&)) {
    kernels.push_back({name, arithmetic, format, run});
  };
  add("w4a16 reference", OperandFormat::kInt16, packed_kernels::W4a16Reference);
  if (avx2) add("w4a16 avx2", OperandFormat::kInt16, packed_kernels::W4a16Avx2);
  // Same bits, so it is a matter of speed: Intel's vdpbf16ps is slow, AMD's is not.
  const bool intel = __builtin_cpu_is("intel");
  if (vnni && !intel) {
    add("w4a16 avx512-vnni", OperandFormat::kInt16, packed_kernels::W4a16Avx512Vnni);
  }
  if (vnni && __builtin_cpu_supports("avx512bf16")) {
    add("w4a16 avx512-bf16", OperandFormat::kBf16AndInt16, packed_kernels::W4a16Avx512Bf16);
  }
  if (vnni && intel) {
    add("w4a16 avx512-vnni", OperandFormat::kInt16, packed_kernels::W4a16Avx512Vnni);
  }
  if (vnni && isa >= CpuIsa::kAmx) {
    add("w4a16 amx", OperandFormat::kBf16AndInt16, packed_kernels::W4a16Amx);
  }
  return kernels;
}

const PackedKernel& BestPackedKernel(PackedArithmetic arithmetic, CpuIsa isa) {
  using Table = std::array<std::array<PackedKernel, 4>, std::size(kPackedArithmetics)>;
  static const Table table = [] {
    Table best;
    for (const PackedArithmetic a : kPackedArithmetics) {
      for (const CpuIsa i : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx}) {
        best[static_cast<size_t>(a)][static_cast<size_t>(i)] = PackedKernels(a, i).back();
      }
    }
    return best;
  }();
  return table[static_cast<size_t>(arithmetic)][static_cast<size_t>(isa)];
}

void PackedLinearRange(const PackedKernel& kernel, const PackedMatrix& w, const std::byte* operand,
                       int64_t begin, int64_t end, MatrixView<float> y) {
  HB_CHECK(y.columns == w.rows && 0 <= begin && begin <= end && end <= w.rows &&
               begin % kPanelRows == 0 && (end % kPanelRows == 0 || end == w.rows),
           "columns [{}, {}) of y [{}, {}] for {} rows", begin, end, y.rows, y.columns, w.rows);
  HB_CHECK(FormatOf(kernel.arithmetic) == w.format, "{} for weights of another format",
           kernel.name);
  kernel.run({.w = w.data,
              .tiles = w.tiles(),
              .rows = w.rows,
              .panel_begin = begin / kPanelRows,
              .panel_end = (end + kPanelRows - 1) / kPanelRows,
              .x = operand,
              .x_row_bytes = OperandRowBytes(kernel.format, w.columns),
              .tokens = y.rows,
              .y = y.data});
}

void PackedLinear(const Context& context, MatrixView<const float> x, int64_t groups,
                  std::span<const PackedProduct> products, std::byte* operands) {
  if (products.empty()) return;
  const auto kernel_of = [&](const PackedProduct& product) -> const PackedKernel& {
    return KernelOf(*product.w, context.isa());
  };
  const PackedKernel& first_kernel = kernel_of(products[0]);
  const int64_t columns = products[0].w->columns;
  int64_t panels = 0;
  for (const PackedProduct& product : products) {
    const PackedMatrix& w = *product.w;
    HB_CHECK(x.columns == groups * w.columns && w.rows % groups == 0 && product.y.rows == x.rows &&
                 product.y.columns == w.rows && (groups == 1 || w.rows / groups % kPanelRows == 0),
             "x [{}, {}], {} groups, w [{}, {}], y [{}, {}]", x.rows, x.columns, groups, w.rows,
             w.columns, product.y.rows, product.y.columns);
    HB_CHECK(kernel_of(product).format == first_kernel.format, "{} and {} want other activations",
             first_kernel.name, kernel_of(product).name);
    panels += groups * PanelsOfGroup(product, groups);
  }
  PrepareGroups(context, x, groups, first_kernel, operands);
  const int64_t panel_work = std::max<int64_t>(1, x.rows * columns * kPanelRows);
  const int64_t grain = std::max((kMinPiece + panel_work - 1) / panel_work,
                                 panels / (kPiecesPerThread * context.pool().threads()));
  // Panels are numbered through all products.
  context.pool().ParallelFor(panels, grain, [&](int64_t begin, int64_t end) {
    for (const PackedProduct& product : products) {
      const int64_t count = groups * PanelsOfGroup(product, groups);
      if (begin < std::min(end, count)) {
        MultiplyPanels(product, kernel_of(product), groups, operands, begin, std::min(end, count));
      }
      begin = std::max<int64_t>(0, begin - count);
      end -= count;
      if (end <= 0) break;
    }
  });
}

}  // namespace halfbyte
