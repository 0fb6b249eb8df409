// The variants behind packed_linear.h, each compiled with the flags of its instruction set. Their
// bodies call nothing but intrinsics and what is here: see the warning in kernels/simd16.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfbyte {

struct PackedArguments {
  const uint8_t* w = nullptr;  // packed_matrix.h
  int64_t tiles = 0;           // of a panel
  int64_t rows = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  const std::byte* x = nullptr;  // [tokens] operand rows
  int64_t x_row_bytes = 0;
  int64_t tokens = 0;
  float* y = nullptr;  // [tokens, rows]
};

// A tile of activations as integers: of OperandFormat::kInt8 with one plane, of kInt16 with two,
// upper * 256 + lower, each from -128 to 127. `bias` is -12 * the sum of a block.
// The kernels take a scale byte shifted into an fp32 number, 2^-117 of its value, and double the
// weights' codes. With the activations' codes doubled (W4a4) and `scale` = activation_scale * 2^58,
// or with plain codes (W4a8) and activation_scale * 2^59, a sum of theirs stands at 2^-57 of y;
// with `scale` = the unit * 2^77 (W4a16), at 2^-39. Nothing overflows or falls below 2^-126 on the
// way.
template <int planes>
struct IntTile {
  int8_t codes[planes][64];
  int32_t bias[4];
  float scale[4];
};
using Int8Tile = IntTile<1>;
using Int16Tile = IntTile<2>;
static_assert(sizeof(Int8Tile) == 96 && sizeof(Int16Tile) == 160);

// Activations of W8a16 and W16a16 below it count as 0.
inline constexpr float kLeastWide = 0x1p-60f;

namespace packed_kernels {

void W4a4Reference(const PackedArguments& arguments);
void W4a4Avx2(const PackedArguments& arguments);
void W4a4Avx512Vnni(const PackedArguments& arguments);  // with VBMI

void W4a16Reference(const PackedArguments& arguments);
void W4a16Avx2(const PackedArguments& arguments);
void W4a16Avx512Vnni(const PackedArguments& arguments);  // with VBMI
void W4a16Avx512Bf16(const PackedArguments& arguments);
void W4a16Amx(const PackedArguments& arguments);  // few tokens: W4a16Avx512Vnni

void W8a16Reference(const PackedArguments& arguments);
void W16a16Reference(const PackedArguments& arguments);
void W8a16Avx512Bf16(const PackedArguments& arguments);  // with VBMI
void W16a16Avx512Bf16(const PackedArguments& arguments);
// A row of OperandFormat::kPairs, which these two take; `columns` is a multiple of 16.
void PreparePairs(const float* x, int64_t columns, std::byte* operand);

}  // namespace packed_kernels

namespace simd_avx2 {
void W8a16Fp32(const PackedArguments& arguments);
void W16a16Fp32(const PackedArguments& arguments);
}  // namespace simd_avx2
namespace simd_avx512 {
void W8a16Fp32(const PackedArguments& arguments);
void W16a16Fp32(const PackedArguments& arguments);
}  // namespace simd_avx512

}  // namespace halfbyte
