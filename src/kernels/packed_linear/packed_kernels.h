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

// A tile of OperandFormat::kInt8. The kernels take a scale byte shifted into an fp32 number, 2^-117
// of its value, and double the weights' codes. With the activations' codes doubled (W4a4) and
// `scale` = activation_scale * 2^58, or with plain codes (W4a8) and activation_scale * 2^59, a sum
// of theirs stands at 2^-57 of y, and nothing overflows on the way.
struct Int8Tile {
  int8_t codes[64];
  int32_t bias[4];
  float scale[4];
};
static_assert(sizeof(Int8Tile) == 96);

// Columns of half a block in the order in which W4a16 adds them.
inline constexpr int kTermOrder[8] = {2, 0, 6, 4, 3, 1, 7, 5};

namespace packed_kernels {

void W4a4Reference(const PackedArguments& arguments);
void W4a4Avx2(const PackedArguments& arguments);
void W4a4Avx512Vnni(const PackedArguments& arguments);  // with VBMI

void W4a16Reference(const PackedArguments& arguments);
void W4a16Avx512Bf16(const PackedArguments& arguments);

}  // namespace packed_kernels

namespace simd_avx2 {
void W4a16Fp32(const PackedArguments& arguments);
}
namespace simd_avx512 {
void W4a16Fp32(const PackedArguments& arguments);
}

}  // namespace halfbyte
