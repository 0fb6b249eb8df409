#include "device/cpu_isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "base/log.h"

namespace halfbyte {
namespace {

__attribute__((target("xsave"))) bool SystemKeepsTiles() {
  constexpr unsigned long long kTileState = 3u << 17;  // configuration and data
  return (__builtin_ia32_xgetbv(0) & kTileState) == kTileState;
}

bool AmxBf16() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  constexpr unsigned int kBf16 = 1u << 22, kTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & (kBf16 | kTile)) != (kBf16 | kTile) || !SystemKeepsTiles()) {
    return false;
  }
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

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
    static const bool amx = AmxBf16();
    if (amx) isas.push_back(CpuIsa::kAmx);
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
    case CpuIsa::kAmx:
      return "amx";
  }
  return "?";
}

}  // namespace halfbyte
