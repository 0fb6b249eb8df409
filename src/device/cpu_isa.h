// Instruction set levels that have kernels of their own.
#pragma once

#include <string_view>
#include <vector>

namespace halfbyte {

// kAvx512: F, BW, DQ, VL. kAmx: that, and tiles with bf16 products.
enum class CpuIsa { kScalar, kAvx2, kAvx512, kAmx };

// The widest level of this machine; HALFBYTE_CPU_ISA = scalar|avx2|avx512|amx lowers it. An unknown
// name or a level that the machine lacks is ignored with a warning.
CpuIsa BestCpuIsa();

// Every level this machine can run, narrowest first: what tests iterate over. Asks Linux for the
// right to use AMX, which a process needs.
std::vector<CpuIsa> SupportedCpuIsas();

std::string_view CpuIsaName(CpuIsa isa);

}  // namespace halfbyte
