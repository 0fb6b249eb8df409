// One linear of the model, y = x W^T, with its weight in the form that suits the math: rearranged
// at load for fast products with bf16 activations (kernels/packed_linear), the stored pages given
// back; or the stored bytes, exact for any fp32 activations (kernels/linear).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/stored_weight.h"
#include "device/arena.h"
#include "device/context.h"
#include "device/zeroed_memory.h"
#include "kernels/packed_linear/packed_matrix.h"
#include "numerics/rounding.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

class Projection {
 public:
  Projection() = default;  // no rows
  // Packed, by the threads of the pool, if there is one and the matrix has a packed form; else a
  // view of the stored bytes. groups: parts of the rows that each meet a part of x's columns.
  // Errors name the tensor.
  static Result<Projection> Create(const StoredWeight& stored, int64_t groups,
                                   ThreadPool* packing_pool);

  int64_t rows() const { return stored_.rows; }

  // x [tokens, groups * columns] -> y [tokens, rows], several of the same x, as if one after the
  // other: x is prepared once and the threads share out all of the work together. Where weights are
  // packed, x holds bf16 numbers. y is rounded last. The arena is for the time of the call.
  struct Output {
    const Projection* w = nullptr;
    MatrixView<float> y;
    Rounding rounding = Rounding::kNone;
  };
  static void ForwardAll(const Context& context, Arena& arena, MatrixView<const float> x,
                         std::span<const Output> outputs);

 private:
  int64_t groups_ = 1;
  WeightMatrix stored_;  // its bytes are not read if packed_
  ZeroedMemory memory_;
  std::optional<PackedMatrix> packed_;
};

}  // namespace halfbyte
