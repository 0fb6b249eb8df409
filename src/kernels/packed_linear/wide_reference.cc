// W8a16 and W16a16 of packed_linear.h as plain loops; also what a machine without AVX2 would run.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/packed_linear/packed_kernels.h"
#include "kernels/packed_linear/packed_matrix.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"

namespace halfbyte::packed_kernels {
namespace {

template <class T>
T Load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

float Fp8At(const uint8_t* tile, int64_t row, int64_t column) {
  const int64_t pair = column / 2;
  return E4m3ToFloat(tile[kTileScaleBytes + pair / 2 * 64 + row / 4 * 16 + pair % 2 * 8 +
                          row % 4 * 2 + 1 - column % 2]);
}
float Fp8Scale(const uint8_t* tile, int64_t row) { return Load<float>(tile + row * 4); }

float Bf16At(const uint8_t* tile, int64_t row, int64_t column) {
  return ToFloat(Load<Bf16>(tile + column / 2 * 64 + row * 4 + (1 - column % 2) * 2));
}
float One(const uint8_t* /*tile*/, int64_t /*row*/) { return 1; }

// weight(tile, row, column) and scale(tile, row) of a tile.
template <class Weight, class Scale>
float RowSum(const PackedArguments& a, TileShape shape, int64_t n, const std::byte* x,
             const Weight& weight, const Scale& scale) {
  const uint8_t* tile = a.w + n / kPanelRows * a.tiles * shape.bytes;
  const int64_t row = n % kPanelRows;
  float sums[2] = {0, 0};
  for (int64_t t = 0; t < a.tiles; ++t, tile += shape.bytes) {
    for (int64_t block = 0; block < shape.columns; block += 16) {
      float sum = 0;
      for (int64_t k = block; k < block + 16; ++k, x += sizeof(float)) {
        sum = std::fma(weight(tile, row, k), Load<float>(x), sum);
      }
      float& to = sums[block / 16 % 2];
      to = std::fma(sum, scale(tile, row), to);
    }
  }
  return sums[0] + sums[1];
}

template <class Weight, class Scale>
void Run(const PackedArguments& a, TileShape shape, const Weight& weight, const Scale& scale) {
  const int64_t end = std::min(a.panel_end * kPanelRows, a.rows);
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t n = a.panel_begin * kPanelRows; n < end; ++n) {
      a.y[t * a.rows + n] = RowSum(a, shape, n, a.x + t * a.x_row_bytes, weight, scale);
    }
  }
}

}  // namespace

void W8a16Reference(const PackedArguments& a) {
  Run(a, TileOf(PackedFormat::kFp8), Fp8At, Fp8Scale);
}
void W16a16Reference(const PackedArguments& a) { Run(a, TileOf(PackedFormat::kBf16), Bf16At, One); }

}  // namespace halfbyte::packed_kernels
