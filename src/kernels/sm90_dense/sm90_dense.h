// y = x W^T of a model's linears on sm_90a (Hopper): several products of the same rows of bf16 in
// one launch, over weights that are packed once into what the tensor core takes.
//
// Arithmetic. A weight is what the checkpoint says, exactly: FP8 code * scale is a bf16 number.
// Products are exact. K is cut into segments of 1,024 columns, the last one shorter; a segment's
// sum is one chain of the tensor core (steps of 16 columns, ascending, fp32) that begins with zero,
// and a row's segments are added in ascending order in fp32, rounded to the output's type last. So
// a row's bits depend on its own x and on W alone: not on the number of tokens, nor on how the work
// is cut. Against the exact sum, |error| <= the segments' sum of 5e-10 * 1024 * sum |x w|, and
// (segments - 1) * 2^-24 * sum |segment|; of a thousand sums of normal numbers one is further off
// than with 2e-10 for 5e-10 (hopper-moe.md §15.1 measured the tensor core). fp32 weights meet no
// tensor core: they give the bits of kernels/linear.
//
// Groups: each of x's parts of `columns` columns meets its own part of W's rows, so that y still
// has `rows` columns (the grouped output projection; deepseek-v4.md §2.7).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/sm90_dense/dense_layout.h"
#include "kernels/sm90_dense/dense_work.h"
#include "numerics/bf16.h"

namespace halfbyte::sm90 {

// A packed weight; the memory is its owner's. Copies are free.
struct DenseWeight {
  DenseFormat format = DenseFormat::kBf16;
  int64_t rows = 0;                   // of all groups; of one: a multiple of 8 (kFp8 with several
                                      // groups: of 64)
  int64_t columns = 0;                // that a row meets: a multiple of 64
  int64_t groups = 1;                 // x has groups * columns columns
  const std::byte* packed = nullptr;  // PackedBytes of device memory, 128-byte aligned
};

// Of memory for the packed form.
int64_t PackedBytes(DenseFormat format, int64_t rows, int64_t columns, int64_t groups);

enum class DenseScale : uint8_t { kNone, kE8m0, kF32 };

// A checkpoint's bytes in device memory, row-major, both 16-byte aligned.
struct StoredDense {
  DenseFormat format = DenseFormat::kBf16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t groups = 1;
  const std::byte* data = nullptr;    // [rows, columns]
  const std::byte* scales = nullptr;  // [ceil(rows / 128), ceil(columns / 128)]; kFp8 only
  DenseScale scale = DenseScale::kNone;
};

// Packs a weight without loss. `unfit`, a counter in device memory or null, grows by what has no
// exact form: scales that are no powers of two or are out of range, and E4M3 codes that are NaN. A
// matrix with such a thing is to be refused, by its name.
cudaError_t LaunchPackDense(const StoredDense& stored, std::byte* packed, int32_t* unfit,
                            cudaStream_t stream);

enum class DenseOutput : uint8_t {
  kBf16,
  kF32,
  kF32OfBf16,  // fp32 numbers, rounded to bf16
};

struct DenseProduct {
  DenseWeight weight;
  void* y = nullptr;  // out, [tokens, rows]
  DenseOutput output = DenseOutput::kBf16;
};

struct DenseArguments {
  const Bf16* x = nullptr;  // [tokens, groups * columns], 16-byte aligned
  int64_t tokens = 0;       // 0: nothing to do
  // At most kMaxDenseProducts, all with the same groups and columns.
  std::span<const DenseProduct> products;
  std::byte* scratch = nullptr;  // DenseScratchBytes, 128-byte aligned; null if that is 0
};

// Of scratch for a launch of these products (`packed` is not looked at) with any number of tokens
// up to `tokens`. Launches of one stream may share the largest; it must be filled with zeros once,
// before the first of them.
int64_t DenseScratchBytes(std::span<const DenseWeight> weights, int64_t tokens);

// A programmatic dependent launch: weights stream in before the kernel before has ended; x, y and
// scratch are touched after. cudaErrorInvalidValue: shapes or alignments other than the above.
cudaError_t LaunchDense(const DenseArguments& arguments, cudaStream_t stream);

// Once per device, before the first launch and outside of stream capture.
cudaError_t PrepareDense();

}  // namespace halfbyte::sm90
