// W4a16 of packed_linear.h with AVX-512 BF16, for more than a few tokens. A block's sum does not
// round, so the order of its terms, and how `vdpbf16ps` treats subnormal numbers, does not show.
#include <immintrin.h>

#include "kernels/packed_linear/bf16_dot.h"
#include "kernels/packed_linear/bf16_tile.h"

namespace halfbyte::packed_kernels {

void W4a16Avx512Bf16(const PackedArguments& a) {
  // Strips pay where there are many tokens; a panel of one strip has to be multiplied by more.
  const int64_t min_tokens = a.tiles > Bf16Dot<Bf16Tile, 2>::kStripTiles ? 16 : 128;
  if (a.tokens < min_tokens) {
    W4a16Avx512Vnni(Int16Part(a));
  } else {
    RunGemm<Bf16Dot<Bf16Tile, 2>>(a);
  }
}

}  // namespace halfbyte::packed_kernels
