# Writes sm90_wgmma.cuh: for each N of the arguments,
#   Wgmma<N>::Run(float (&d)[N / 2], const uint32_t* a, uint64_t b)
#   Wgmma<N>::Run(float (&d)[N / 2], uint64_t a, uint64_t b)
#   Wgmma<N>::RunAcross(float (&d)[N / 2], const uint32_t* a, uint64_t b)
# which is wgmma.m64nNk16: d[64, N] += A[64, 16] B[16, N], bf16 to fp32, A in registers (4 per
# thread) or like B in shared memory (WgmmaDescriptor). B's rows in memory run along k, in RunAcross
# along n. Generated, as inline assembly must name every accumulator.
function(halfbyte_wgmma_header path)
  set(text "#pragma once\n#include <cstdint>\nnamespace halfbyte::sm90 {\n")
  string(APPEND text "template <int N>\nstruct Wgmma;\n")
  foreach(n ${ARGN})
    math(EXPR count "${n} / 2")
    math(EXPR last "${count} - 1")
    set(places "")
    set(outputs "")
    foreach(i RANGE ${last})
      list(APPEND places "%${i}")
      list(APPEND outputs "\"+f\"(d[${i}])")
    endforeach()
    list(JOIN places ", " places)
    list(JOIN outputs ", " outputs)
    foreach(i RANGE 4)
      math(EXPR in${i} "${count} + ${i}")
    endforeach()
    string(APPEND text "template <>\nstruct Wgmma<${n}> {\n")
    foreach(run Run RunAcross)
      set(across 0)
      if(run STREQUAL RunAcross)
        set(across 1)
      endif()
      string(APPEND text
        "  static __device__ __forceinline__ void ${run}(float (&d)[${count}], const uint32_t* a,\n"
        "                                             uint64_t b) {\n"
        "    asm volatile(\"wgmma.mma_async.sync.aligned.m64n${n}k16.f32.bf16.bf16 \"\n"
        "      \"{${places}}, \"\n"
        "      \"{%${in0}, %${in1}, %${in2}, %${in3}}, %${in4}, 1, 1, 1, ${across};\"\n"
        "      : ${outputs}\n"
        "      : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n"
        "  }\n")
    endforeach()
    string(APPEND text
      "  static __device__ __forceinline__ void Run(float (&d)[${count}], uint64_t a,\n"
      "                                             uint64_t b) {\n"
      "    asm volatile(\"wgmma.mma_async.sync.aligned.m64n${n}k16.f32.bf16.bf16 {${places}}, \"\n"
      "      \"%${in0}, %${in1}, 1, 1, 1, 0, 0;\"\n"
      "      : ${outputs}\n"
      "      : \"l\"(a), \"l\"(b));\n"
      "  }\n};\n")
  endforeach()
  string(APPEND text "}\n")
  file(GENERATE OUTPUT "${path}" CONTENT "${text}")
endfunction()
