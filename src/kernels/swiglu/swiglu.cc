#include "kernels/swiglu/swiglu.h"

#include "kernels/swiglu/swiglu_simd.h"

namespace halfbyte {

void SwigluRow(const Context& context, const SwigluParams& params,
               const SwigluRowArguments& arguments) {
  switch (context.isa()) {
    case CpuIsa::kScalar:
      return simd_scalar::SwigluRow(params, arguments);
    case CpuIsa::kAvx2:
      return simd_avx2::SwigluRow(params, arguments);
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return simd_avx512::SwigluRow(params, arguments);
  }
}

}  // namespace halfbyte
