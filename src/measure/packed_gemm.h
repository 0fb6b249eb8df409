// The rate at which packed weights meet many tokens, of each kind that a model's step has products
// with: what long steps are judged by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/context.h"
#include "device/zeroed_memory.h"
#include "kernels/packed_linear/packed_linear.h"
#include "moe/moe_params.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

class PackedGemm {
 public:
  // The matrix packed, and so many rows of activations for the best kernel of this machine; 4-bit
  // weights are computed with in the arithmetic given. Error: the matrix has no packed form.
  static Result<PackedGemm> Create(const Context& context, const WeightMatrix& matrix,
                                   Arithmetic four_bit, int64_t tokens);

  // Operations per second of one product by all threads.
  double Measure(const Context& context);
  static int64_t Bytes(const WeightMatrix& matrix, int64_t tokens);

 private:
  explicit PackedGemm(const PackedKernel& kernel) : kernel_(kernel) {}

  const PackedKernel& kernel_;
  ZeroedMemory memory_;
  PackedMatrix matrix_;
  int64_t tokens_ = 0;
  std::vector<std::byte> operand_;
  std::vector<float> y_;
};

}  // namespace halfbyte
