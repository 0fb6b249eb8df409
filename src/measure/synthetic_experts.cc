#include "measure/synthetic_experts.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/quantize_nvfp4/quantize_nvfp4.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// Weights of a size that keeps the activations near 1.
Result<Nvfp4Matrix> MakeMatrix(const Context& context, int64_t rows, int64_t k, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(rows * k));
  const float deviation = 1.0f / std::sqrt(static_cast<float>(k));
  context.pool().ParallelFor(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::mt19937_64 random(seed + static_cast<uint64_t>(r));
      std::normal_distribution<float> normal(0, deviation);
      std::generate_n(values.data() + r * k, k, [&] { return normal(random); });
    }
  });
  const MatrixView<const float> view{values.data(), rows, k};
  HB_ASSIGN_OR_RETURN(QuantizedMatrix quantized,
                      QuantizeNvfp4FromAmax(context, FloatRows::Of(view), Nvfp4Rule::kAmaxTo6));
  return std::move(quantized.matrix);
}

// Row r of the copy is row (r + by) % rows of the source.
void CopyRotated(const uint8_t* from, int64_t rows, int64_t row_bytes, int64_t by, std::byte* to) {
  const auto* source = reinterpret_cast<const std::byte*>(from);
  const int64_t head = by % rows;
  std::copy_n(source + head * row_bytes, (rows - head) * row_bytes, to);
  std::copy_n(source, head * row_bytes, to + (rows - head) * row_bytes);
}

// Copies the matrix to `at` and moves `at` behind it.
WeightMatrix Place(const Nvfp4View& matrix, int64_t rotation, std::byte*& at) {
  const int64_t code_bytes = matrix.rows * matrix.k / 2;
  const int64_t scale_bytes = matrix.rows * matrix.k / kNvfp4Block;
  const WeightMatrix placed{.format = WeightFormat::kNvfp4,
                            .rows = matrix.rows,
                            .columns = matrix.k,
                            .data = at,
                            .scales = at + code_bytes,
                            .global_scale = matrix.global_scale};
  CopyRotated(matrix.codes, matrix.rows, matrix.k / 2, rotation, at);
  CopyRotated(matrix.block_scales, matrix.rows, matrix.k / kNvfp4Block, rotation, at + code_bytes);
  at += code_bytes + scale_bytes;
  return placed;
}

}  // namespace

Result<SyntheticExperts> SyntheticExperts::Make(const Context& context, const MoeShape& shape) {
  constexpr int64_t kRotation = 97;
  HB_ASSIGN_OR_RETURN(const auto gate, MakeMatrix(context, shape.intermediate, shape.hidden, 1));
  HB_ASSIGN_OR_RETURN(const auto up,
                      MakeMatrix(context, shape.intermediate, shape.hidden, uint64_t{1} << 32));
  HB_ASSIGN_OR_RETURN(const auto down,
                      MakeMatrix(context, shape.hidden, shape.intermediate, uint64_t{1} << 33));
  SyntheticExperts experts;
  experts.expert_bytes_ = shape.expert_bytes();
  const int64_t bytes = shape.experts * shape.expert_bytes();
  HB_ASSIGN_OR_RETURN(experts.memory_,
                      ZeroedMemory::Allocate(bytes, "synthetic experts", Pages::kHuge));
  experts.weights_.resize(static_cast<size_t>(shape.experts));
  context.pool().ParallelFor(shape.experts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      std::byte* at = experts.memory_.data() + e * experts.expert_bytes_;
      ExpertWeights& weights = experts.weights_[static_cast<size_t>(e)];
      weights.gate = Place(gate.view(), e * kRotation, at);
      weights.up = Place(up.view(), e * kRotation, at);
      weights.down = Place(down.view(), e * kRotation, at);
    }
  });
  return experts;
}

void SyntheticExperts::Drop(int32_t expert) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = RoundUp(expert * expert_bytes_, page);  // neighbours keep shared pages
  const int64_t end = (expert + 1) * expert_bytes_ / page * page;
  if (begin >= end) return;
  (void)::madvise(memory_.data() + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace halfbyte
