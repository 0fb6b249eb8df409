// The contract of packed_linear.h as plain loops; also what a machine without AVX2 would run.
#include <cmath>
#include <cstring>

#include "kernels/packed_linear/packed_kernels.h"
#include "kernels/packed_linear/packed_matrix.h"
#include "numerics/e2m1.h"

namespace halfbyte::packed_kernels {
namespace {

constexpr int kTileBlocks = 4;

uint8_t Code(const uint8_t* tile, int block, int row, int column) {
  const uint8_t byte = tile[kTileScaleBytes + block * 128 + column / 8 * 64 + row * 4 + column % 4];
  return column % 8 < 4 ? byte & 15 : byte >> 4;
}

float Scale(const uint8_t* tile, int block, int row) {
  return PackedScaleToFloat(tile[block * kPanelRows + row]);
}

// Calls element(panel, row of the panel, operand row) for everything that is asked for.
template <class Element>
void ForEach(const PackedArguments& a, const Element& element) {
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) {
    for (int64_t t = 0; t < a.tokens; ++t) {
      for (int64_t n = p * kPanelRows; n < (p + 1) * kPanelRows && n < a.rows; ++n) {
        a.y[t * a.rows + n] =
            element(a.w + p * a.tiles * kTileBytes, static_cast<int>(n - p * kPanelRows),
                    a.x + t * a.x_row_bytes);
      }
    }
  }
}

template <int planes>
void Run(const PackedArguments& a, float last_factor) {
  ForEach(a, [&](const uint8_t* w, int row, const std::byte* x) {
    float sums[2] = {0, 0};
    for (int64_t t = 0; t < a.tiles; ++t, w += kTileBytes, x += sizeof(IntTile<planes>)) {
      IntTile<planes> tile;
      std::memcpy(&tile, x, sizeof(tile));
      for (int b = 0; b < kTileBlocks; ++b) {
        int dot = 0;
        for (int k = b * 16; k < (b + 1) * 16; ++k) {
          int code = 0;
          for (int p = 0; p < planes; ++p) code = code * 256 + tile.codes[p][k];
          dot += kE2m1Doubled[Code(w, b, row, k % 16)] * code;
        }
        const float factor = Scale(w, b, row) * 0x1p-117f * tile.scale[b];
        sums[b % 2] = std::fma(static_cast<float>(dot), factor, sums[b % 2]);
      }
    }
    return (sums[0] + sums[1]) * last_factor;
  });
}

}  // namespace

void W4a4Reference(const PackedArguments& a) { Run<1>(a, 0x1p57f); }
void W4a16Reference(const PackedArguments& a) { Run<2>(a, 0x1p39f); }

}  // namespace halfbyte::packed_kernels
