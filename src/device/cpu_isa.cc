#include "device/cpu_isa.h"

#include <cstdlib>

#include "base/log.h"

namespace halfbyte {
namespace {

CpuIsa DetectAndOverride() {
  const std::vector<CpuIsa> supported = SupportedCpuIsas();
  const char* wanted = std::getenv("HALFBYTE_CPU_ISA");
  if (wanted == nullptr) return supported.back();
  for (const CpuIsa isa : supported) {
    if (CpuIsaName(isa) == wanted) return isa;
  }
  spdlog::warn("HALFBYTE_CPU_ISA={} is unknown or not supported here; using {}", wanted,
               CpuIsaName(supported.back()));
  return supported.back();
}

}  // namespace

std::vector<CpuIsa> SupportedCpuIsas() {
  std::vector<CpuIsa> isas = {CpuIsa::kScalar, CpuIsa::kAvx2};
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    isas.push_back(CpuIsa::kAvx512);
  }
  return isas;
}

CpuIsa BestCpuIsa() {
  static const CpuIsa isa = DetectAndOverride();
  return isa;
}

std::string_view CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace halfbyte
