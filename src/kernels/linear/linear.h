// y = x W^T for a weight in any stored format, straight from checkpoint bytes.
//
//   y[t, n] = sum over k of x[t, k] * w[n, k]       x [T, K] fp32, w [N, K], y [T, N] fp32
//
// x may hold values that the caller rounded to bf16; y is not rounded. w's bytes may be unaligned.
// T, N and K may be 0 (K = 0 gives zeros). y must not overlap x.
//
// Order of operations (the determinism of the whole model rests on it). Each y[t, n] depends on row
// t of x and row n of w only, by this rule:
//   1. Each weight is decoded to fp32: exactly for F32, BF16, F16, for NVFP4 without its global
//      scale (code * block_scale) and for MXFP4 (code * 2^e); FP8 is e4m3 * scale, rounded once.
//   2. K is extended with zeros to a multiple of 16. Lane l of 16 starts at 0 and takes
//      k = l, l + 16, l + 32, ... in this order, each by one fused multiply-add.
//   3. The lanes are added in the fixed tree of Sum (kernels/simd16.h).
//   4. NVFP4 only: the sum is multiplied by global_scale, once.
// So the bits do not depend on the instruction set, the number of threads, or the other rows of x.
// (Bits of NaN results may differ; whether a result is NaN may not.)
#pragma once

#include "device/context.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

// Checks shapes with HB_CHECK: x.columns = w.columns, y = [x.rows, w.rows]; K is a multiple of 16
// for NVFP4 and of 32 for MXFP4. Parallel over rows of w; small products run in the caller.
void Linear(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
            MatrixView<float> y);

// The same with long sums that several processors may share (segment_sum.h): rules 2 to 4 hold for
// each segment of 256 columns, whose sums are added in a binary tree.
void LinearSegments(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
                    MatrixView<float> y);

// Columns [begin, end) of y of Linear only, in the calling thread: for callers that run their own
// parallel loop over several products. Same bits.
void LinearRange(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
                 int64_t begin, int64_t end, MatrixView<float> y);

// Rows of w that make one piece of a parallel loop worth starting: a multiple of 4.
int64_t LinearGrain(const Context& context, int64_t tokens, const WeightMatrix& w);

// The rules above as plain loops: what every fast variant must equal bit for bit.
void LinearReference(MatrixView<const float> x, const WeightMatrix& w, MatrixView<float> y);
void LinearSegmentsReference(MatrixView<const float> x, const WeightMatrix& w, MatrixView<float> y);

// The judge: exact weights (FP8 and NVFP4 scales included without rounding), double products and a
// double sum in ascending k, rounded to fp32 at the end. Scalar and slow; used by `--arithmetic
// ref`.
void LinearF64(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
               MatrixView<float> y);
void LinearF64Range(MatrixView<const float> x, const WeightMatrix& w, int64_t begin, int64_t end,
                    MatrixView<float> y);

}  // namespace halfbyte
