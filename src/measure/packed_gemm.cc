#include "measure/packed_gemm.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "measure/seconds_since.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

PackedArithmetic ArithmeticOf(PackedFormat weights, Arithmetic four_bit) {
  if (weights != PackedFormat::kFourBit) return Bf16ArithmeticOf(weights);
  return four_bit == Arithmetic::kW4a4   ? PackedArithmetic::kW4a4
         : four_bit == Arithmetic::kW4a8 ? PackedArithmetic::kW4a8
                                         : PackedArithmetic::kW4a16;
}

void PrepareRandomRow(const PackedKernel& kernel, std::mt19937& random, int64_t columns,
                      std::byte* operand) {
  if (kernel.arithmetic == PackedArithmetic::kW4a4) {
    std::vector<uint8_t> codes(static_cast<size_t>(columns / 2));
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
    const std::vector<uint8_t> scales(static_cast<size_t>(columns / kNvfp4Block), 0x38);
    return PrepareNvfp4Row(codes.data(), scales.data(), columns, operand);
  }
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(columns));
  for (float& value : x) value = RoundToBf16(normal(random));
  PrepareRow(kernel, x.data(), columns, operand);
}

}  // namespace

Result<PackedGemm> PackedGemm::Create(const Context& context, const WeightMatrix& matrix,
                                      Arithmetic four_bit, int64_t tokens) {
  const auto format = PackedFormatOf(matrix);
  if (!format) return MakeError("a matrix of {} columns has no packed form", matrix.columns);
  PackedGemm gemm(BestPackedKernel(ArithmeticOf(*format, four_bit), context.isa()));
  HB_ASSIGN_OR_RETURN(gemm.memory_,
                      ZeroedMemory::Allocate(PackedBytes(matrix), "bench", Pages::kHuge));
  HB_ASSIGN_OR_RETURN(
      const auto packed,
      PackMatrix(context.pool(), matrix, reinterpret_cast<uint8_t*>(gemm.memory_.data()), "bench"));
  if (!packed) return MakeError("a matrix of {} columns cannot be packed", matrix.columns);
  gemm.matrix_ = *packed;
  gemm.tokens_ = tokens;
  const int64_t row_bytes = OperandRowBytes(gemm.kernel_.format, matrix.columns);
  gemm.operand_.resize(static_cast<size_t>(tokens * row_bytes));
  std::mt19937 random(3);
  for (int64_t t = 0; t < tokens; ++t) {
    PrepareRandomRow(gemm.kernel_, random, matrix.columns, gemm.operand_.data() + t * row_bytes);
  }
  gemm.y_.resize(static_cast<size_t>(tokens * matrix.rows));
  return gemm;
}

double PackedGemm::Measure(const Context& context) {
  constexpr int64_t kGrain = 4;  // panels
  const auto start = std::chrono::steady_clock::now();
  context.pool().ParallelFor(matrix_.panels(), kGrain, [&](int64_t begin, int64_t end) {
    PackedLinearRange(kernel_, matrix_, operand_.data(), begin * kPanelRows,
                      std::min(end * kPanelRows, matrix_.rows), {y_.data(), tokens_, matrix_.rows});
  });
  return static_cast<double>(2 * tokens_ * matrix_.rows * matrix_.columns) / SecondsSince(start);
}

int64_t PackedGemm::Bytes(const WeightMatrix& matrix, int64_t tokens) {
  return PackedBytes(matrix) +
         tokens * (MaxOperandRowBytes(matrix.columns) + matrix.rows * int64_t{sizeof(float)});
}

}  // namespace halfbyte
