# Language standard, warnings, sanitizers and instruction set: what holds for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(HALFBYTE_SANITIZE "" CACHE STRING "Sanitizers for every target, e.g. address,undefined")
option(HALFBYTE_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(HALFBYTE_CUDA "Compile the CUDA sources (needs nvcc)" OFF)
option(HALFBYTE_BENCH "Build the Google Benchmark programs" ON)
option(HALFBYTE_PYTHON "Build the Python module: what pip install ./python sets" OFF)
# Not under sanitizers: their runtime belongs to a program, not to a library loaded by others.
set(HALFBYTE_SHARED ON)
if(HALFBYTE_SANITIZE OR HALFBYTE_FUZZ)
  set(HALFBYTE_SHARED OFF)
endif()

# Presets compile several files as one (CMAKE_UNITY_BUILD): half the time for everything, more after
# an edit. g++ need not look for garbage in them before it holds 600 MB: a fifteenth of the time.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=600000>")
endif()

find_program(HALFBYTE_CCACHE ccache)
if(HALFBYTE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${HALFBYTE_CCACHE}")
endif()

# The baseline is AVX2 + FMA (x86-64-v3); `halfbyte` says so on an older CPU. Wider instruction sets
# live in files of their own, compiled with their own flags and chosen at run time.
# No contraction: each floating-point operation in the source is one IEEE operation, so results do
# not depend on what the compiler fuses. Kernels that want a fused multiply-add call it by name.
# -Wno-missing-field-initializers: members that a designated initializer leaves out have defaults.
# What nvcc takes of this it is handed in halfbyte_cuda.cmake.
set(halfbyte_cxx_options -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Werror
                         -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND halfbyte_cxx_options -march=x86-64-v3)
else()
  message(FATAL_ERROR "halfbyte: only x86-64 is supported so far, not ${CMAKE_SYSTEM_PROCESSOR}")
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${halfbyte_cxx_options}>")

if(HALFBYTE_SANITIZE)
  add_compile_options(-fsanitize=${HALFBYTE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HALFBYTE_SANITIZE})
  # They take a sixth of the time to compile and find nothing that a crash does not tell.
  add_compile_options(-fno-sanitize=null,vptr)
endif()
if(HALFBYTE_FUZZ)
  # g++ 12 is told of warnings that clang does not have.
  add_compile_options(-Wno-unknown-warning-option)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "halfbyte: the fuzz preset needs clang 16 (clang++-16), "
                        "not ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
