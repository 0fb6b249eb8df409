# Writes attention_wgmma.cuh: for each N of the arguments,
#   AttentionWgmma<N>::Scores(float (&d)[N / 2], uint64_t a, uint64_t b)
#   AttentionWgmma<N>::Values(float (&d)[N / 2], const uint32_t* a, uint64_t b)
# which are wgmma.m64nNk16, bf16 to fp32: d[64, N] += A[64, 16] B[16, N]. Scores: A and B in shared
# memory with k along rows. Values: A in registers, B in shared memory with n along rows.
function(halfbyte_attention_wgmma_header path)
  set(text "#pragma once\n#include <cstdint>\nnamespace halfbyte::attention {\n")
  string(APPEND text "template <int N>\nstruct AttentionWgmma;\n")
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
    set(name "wgmma.mma_async.sync.aligned.m64n${n}k16.f32.bf16.bf16")
    string(APPEND text "template <>\nstruct AttentionWgmma<${n}> {\n"
      "  static __device__ __forceinline__ void Scores(float (&d)[${count}], uint64_t a,\n"
      "                                                uint64_t b) {\n"
      "    asm volatile(\"${name} {${places}}, %${in0}, %${in1}, 1, 1, 1, 0, 0;\"\n"
      "      : ${outputs} : \"l\"(a), \"l\"(b));\n"
      "  }\n"
      "  static __device__ __forceinline__ void Values(float (&d)[${count}], const uint32_t* a,\n"
      "                                                uint64_t b) {\n"
      "    asm volatile(\"${name} {${places}}, {%${in0}, %${in1}, %${in2}, %${in3}}, %${in4}, \"\n"
      "      \"1, 1, 1, 1;\"\n"
      "      : ${outputs}\n"
      "      : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n"
      "  }\n};\n")
  endforeach()
  string(APPEND text "}\n")
  file(GENERATE OUTPUT "${path}" CONTENT "${text}")
endfunction()
