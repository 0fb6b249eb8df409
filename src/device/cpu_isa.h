// Instruction set levels that have kernels of their own.
#pragma once

#include <string_view>
#include <vector>

namespace halfbyte {

enum class CpuIsa { kScalar, kAvx2, kAvx512 };  // kAvx512: F, BW, DQ, VL

// The widest level of this machine; HALFBYTE_CPU_ISA = scalar|avx2|avx512 lowers it. An unknown
// name or a level that the machine lacks is ignored with a warning.
CpuIsa BestCpuIsa();

// Every level this machine can run, narrowest first: what tests iterate over.
std::vector<CpuIsa> SupportedCpuIsas();

std::string_view CpuIsaName(CpuIsa isa);

}  // namespace halfbyte
