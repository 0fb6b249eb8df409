#include "kernels/packed_linear/packed_linear.h"

#include <array>

#include "base/check.h"
#include "kernels/packed_linear/packed_kernels.h"

namespace halfbyte {

std::vector<PackedKernel> PackedKernels(PackedArithmetic arithmetic, CpuIsa isa) {
  const bool avx2 = isa != CpuIsa::kScalar;
  const bool avx512 = isa >= CpuIsa::kAvx512;
  const bool vnni =
      avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  std::vector<PackedKernel> kernels;
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
  if (avx512 && __builtin_cpu_supports("avx512bf16")) {
    add("w4a16 avx512-bf16", OperandFormat::kBf16, packed_kernels::W4a16Avx512Bf16);
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
  using Table = std::array<std::array<PackedKernel, 4>, 3>;
  static const Table table = [] {
    Table best;
    for (const PackedArithmetic a :
         {PackedArithmetic::kW4a4, PackedArithmetic::kW4a8, PackedArithmetic::kW4a16}) {
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

}  // namespace halfbyte
