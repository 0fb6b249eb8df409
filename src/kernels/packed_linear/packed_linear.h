// y = x W^T for packed weights, in the arithmetics of the MoE layer and the model's linears. For
// one token and for hundreds; a token's result does not depend on how many there are, nor on the
// instruction set, nor on which range of columns of y is asked for:
//
//   y[t, n] = acc[0] + acc[1],   acc[p] = sum over the blocks b of 16 columns with b % 2 = p,
//                                ascending, from 0, each step one fused multiply-add in fp32
//
// y is not multiplied by the weight's global_scale, nor by that of the activations.
//
// W4a4: weights have four bits (PackedFormat::kFourBit), activations are NVFP4 too. A step adds
//       dot(b) * (weight_scale * activation_scale)
//   dot(b), the dot product of 16 codes, is a multiple of 1/4 below 576, computed in integers; the
//   two E4M3 scales multiply to at most 8 bits. So a step's term is exact in fp32, and only the
//   columns / 16 additions round: |error| <= (columns / 32 + 1) * 2^-24 * sum over b of |term|.
//
// W4a8: activations are int8, each block of 16 with its own scale in fp32: scale = amax / 127,
//   code = x * (127 / amax), rounded to the nearest, ties to even, every operation in fp32. A block
//   whose amax is below 2^-52 is 0; from 2^64 on, or with a NaN, it makes its row's results NaN.
//   A step is acc = fma(dot(b), weight_scale * activation_scale, acc), dot(b) exact as in W4a4, the
//   product of the scales rounded. With x' = code * scale in place of x,
//   |error| <= (columns / 32 + 2) * 2^-24 * sum over b of |term|;  |x - x'| <= (1/2 + 2^-15) *
//   scale.
//
// W4a16: activations are bf16 and, in each block of 16, multiples of one unit, a power of two:
//   unit = 2^(e - 14), with e the exponent of the bf16 number after the block's amax; x' = x
//   rounded to a multiple, ties to even. Numbers from amax / 127 on stay as they are, the others
//   change by less than 2^-14.9 * amax. A block whose amax is below 2^-63 is 0; from 2^64 on, or
//   with a NaN, it makes its row's results NaN. A step is acc = fma(s, weight_scale, acc), with s
//   the sum of the block's 16 terms code * x'. They are multiples of unit / 2 and their magnitudes
//   add up to less than 2^23 of it: s is exact in any order, by integer, bf16 or fp32 instructions.
//   |error| <= (columns / 32 + 1) * 2^-24 * sum over b of |s * weight_scale|, x' in place of x.
//
// W8a16, W16a16: weights in FP8 or bf16, activations in bf16; weights below 2^-52 and activations
//   below 2^-60 count as 0, because `vdpbf16ps` knows no subnormal numbers. A step is
//   acc = fma(s, scale, acc), with s the sum of the block's 16 terms weight * x, from 0, ascending,
//   each a fused multiply-add, and scale that of the weights, 1 in bf16.
//   |error| <= (columns / 32 + 18) * 2^-24 * sum over k of |weight * scale * x|.
//
// (Bits of NaN results may differ; whether a result is NaN may not.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/context.h"
#include "device/cpu_isa.h"
#include "kernels/packed_linear/packed_matrix.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct PackedArguments;

enum class PackedArithmetic : uint8_t { kW4a4, kW4a8, kW4a16, kW8a16, kW16a16 };
inline constexpr PackedArithmetic kPackedArithmetics[] = {
    PackedArithmetic::kW4a4, PackedArithmetic::kW4a8, PackedArithmetic::kW4a16,
    PackedArithmetic::kW8a16, PackedArithmetic::kW16a16};
// The one for bf16 activations.
constexpr PackedArithmetic Bf16ArithmeticOf(PackedFormat weights) {
  return weights == PackedFormat::kFourBit ? PackedArithmetic::kW4a16
         : weights == PackedFormat::kFp8   ? PackedArithmetic::kW8a16
                                           : PackedArithmetic::kW16a16;
}

// How a kernel wants its activations, for each tile of 64 columns.
enum class OperandFormat : uint8_t {
  kInt8,   // 64 codes as int8, of W4a4 times 2; of each block -12 * their sum (int32), its scale
  kInt16,  // W4a16: 64 multiples of a block's unit as two planes of int8, upper * 256 + lower; of
           // each block -12 * their sum (int32), its unit
  kBf16AndInt16,  // W4a16: all tiles as bf16 numbers, in the order 2 0 6 4 3 1 7 5 10 8 14 12 11 9
                  // 15 13 of each block, the second of each two first; then all tiles of kInt16
  kPairs,         // W8a16, W16a16: bf16 numbers, the second of each two first
  kFp32,          // W8a16, W16a16: bf16 numbers as fp32
};

// One variant of one arithmetic.
struct PackedKernel {
  const char* name;
  PackedArithmetic arithmetic;
  OperandFormat format;
  void (*run)(const PackedArguments&);
};

// Those that this machine can run on `isa` and below, the plain reference first, the best last.
std::vector<PackedKernel> PackedKernels(PackedArithmetic arithmetic, CpuIsa isa);
// The last of them.
const PackedKernel& BestPackedKernel(PackedArithmetic arithmetic, CpuIsa isa);

// Bytes of one row of activations as a kernel takes it, a multiple of 32; at most
// MaxOperandRowBytes.
int64_t OperandRowBytes(OperandFormat format, int64_t columns);
int64_t MaxOperandRowBytes(int64_t columns);

// kInt8 from one row of codes [columns / 2] and block scales [columns / 16].
void PrepareNvfp4Row(const uint8_t* codes, const uint8_t* block_scales, int64_t columns,
                     std::byte* operand);
// What all other kernels take, from x[columns], a multiple of 16.
void PrepareRow(const PackedKernel& kernel, const float* x, int64_t columns, std::byte* operand);

// Columns [begin, end) of y [tokens, w.rows], in the calling thread. `begin` is a multiple of 16,
// `end` also or w.rows. `operand` holds y.rows rows of OperandRowBytes each.
void PackedLinearRange(const PackedKernel& kernel, const PackedMatrix& w, const std::byte* operand,
                       int64_t begin, int64_t end, MatrixView<float> y);

// One of several products of the same activations: y [tokens, w.rows].
struct PackedProduct {
  const PackedMatrix* w = nullptr;
  MatrixView<float> y;
  Rounding rounding = Rounding::kNone;  // of y, last
};

// All of every y for bf16 activations, times its weight's global_scale; parallel over all of them
// together. In x [tokens, groups * w.columns] group g of the columns meets group g of w's rows; of
// several groups, the rows of one are a multiple of 16. The weights of several products have equal
// columns, and all or none of them four bits. `operands` has room for tokens * groups rows of
// MaxOperandRowBytes(w.columns).
void PackedLinear(const Context& context, MatrixView<const float> x, int64_t groups,
                  std::span<const PackedProduct> products, std::byte* operands);

}  // namespace halfbyte
