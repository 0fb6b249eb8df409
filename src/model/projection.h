// One linear of the model, y = x W^T, with its weight in the form that suits the math: rearranged
// at load for fast products with bf16 activations (kernels/packed_linear), the stored pages given
// back; or the stored bytes, exact for any fp32 activations (kernels/linear).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "device/zeroed_memory.h"
#include "kernels/packed_linear/packed_matrix.h"
#include "model/step.h"
#include "model/weight_loader.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

class Projection {
 public:
  Projection() = default;  // no rows
  // The module's matrix [rows, columns]. Packed, by the threads of the loader's pool, if it has one
  // and the matrix has a packed form. The checkpoint must outlive the result. Errors name the
  // tensor.
  static Result<Projection> Load(const WeightLoader& loader, const ModuleKey& key, int64_t rows,
                                 int64_t columns, int64_t groups = 1);

  int64_t rows() const { return stored_.rows; }

  // x [tokens, groups * columns] -> y [tokens, rows]: group g of x's columns meets group g of the
  // rows (deepseek-v4.md §2.7). If the loader had a pool, x holds bf16 numbers. y is rounded last.
  void Forward(const Step& step, MatrixView<const float> x, MatrixView<float> y,
               Rounding rounding = Rounding::kNone) const;

  // Several of the same x, as if one after the other: x is prepared once and the threads share out
  // all of the work together.
  struct Output {
    const Projection* w = nullptr;
    MatrixView<float> y;
    Rounding rounding = Rounding::kNone;
  };
  static void ForwardAll(const Step& step, MatrixView<const float> x,
                         std::span<const Output> outputs);

 private:
  int64_t groups_ = 1;
  WeightMatrix stored_;  // its bytes are not read if packed_
  ZeroedMemory memory_;
  std::optional<PackedMatrix> packed_;
};

}  // namespace halfbyte
