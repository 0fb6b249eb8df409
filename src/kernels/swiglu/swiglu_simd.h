// SwigluRow once per instruction set (swiglu_simd.inc).
#pragma once

#include "kernels/swiglu/swiglu.h"

namespace halfbyte {
namespace simd_scalar {
void SwigluRow(const SwigluParams& params, const SwigluRowArguments& arguments);
}
namespace simd_avx2 {
void SwigluRow(const SwigluParams& params, const SwigluRowArguments& arguments);
}
namespace simd_avx512 {
void SwigluRow(const SwigluParams& params, const SwigluRowArguments& arguments);
}
}  // namespace halfbyte
