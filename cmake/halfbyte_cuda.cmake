# The cuda preset: finds nvcc, proves that it compiles C++20, and says how .cu files are compiled.
# CMake 3.25 knows no C++20 flag for nvcc 13, so it is told, and a static_assert checks that the
# flag arrives.
#
# .cu files hold device code and what launches it, over plain structs. fmt does not compile there
# as C++20 (nvcc 13.0), so they include neither base/result.h nor base/check.h nor what needs them;
# errors, checks and owners live in .cc files, which include cuda_runtime_api.h.
if(NOT HALFBYTE_CUDA)
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "halfbyte: the cuda preset needs nvcc; install the CUDA toolkit and put nvcc "
                      "on the PATH, or name it in the environment variable CUDACXX")
endif()
# "real": machine code only. sm_90a code runs on no other architecture, so PTX would help nobody.
set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "GPU architectures to compile for")
if(HALFBYTE_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${HALFBYTE_CCACHE}")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")

set(halfbyte_probe "${CMAKE_BINARY_DIR}/halfbyte_cuda_probe.cu")
file(WRITE "${halfbyte_probe}"
     "static_assert(__cplusplus == 202002L);\n__global__ void Nothing() {}\nint main() {}\n")
try_compile(HALFBYTE_CUDA_HAS_CXX20 "${CMAKE_BINARY_DIR}/halfbyte_cuda_probe" "${halfbyte_probe}"
            OUTPUT_VARIABLE halfbyte_probe_output)
if(NOT HALFBYTE_CUDA_HAS_CXX20)
  message(FATAL_ERROR "halfbyte: ${CMAKE_CUDA_COMPILER} does not compile C++20:\n"
                      "${halfbyte_probe_output}")
endif()
message(STATUS "halfbyte: CUDA ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER}), C++20, "
               "architectures ${CMAKE_CUDA_ARCHITECTURES}")

# -fmad=false, as -ffp-contract=off on the host: a fused operation is one that the source calls by
# name. The constexpr functions of numerics/ run on the device too. Spills are errors.
set(halfbyte_nvcc_options --expt-relaxed-constexpr -fmad=false -Werror=all-warnings -lineinfo
                          -Xptxas=-warn-spills -Xptxas=-Werror)
foreach(option ${halfbyte_cxx_options})
  list(APPEND halfbyte_nvcc_options "-Xcompiler=${option}")
endforeach()
# The host code that nvcc writes is not ours to warn about.
list(APPEND halfbyte_nvcc_options -Xcompiler=-Wno-unused-parameter)
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:${halfbyte_nvcc_options}>")

# Programs of this preset are carried to machines with a driver and libc only: cudart, libstdc++,
# libgcc and gtest are linked in, fmt and spdlog compiled from their headers (Debian has them as
# shared libraries only, which --as-needed then drops). Without it host objects are those of the
# release preset, which ccache then has.
option(HALFBYTE_PORTABLE "Programs of the cuda preset need a driver and libc only" ON)
if(HALFBYTE_PORTABLE)
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
  set_target_properties(spdlog::spdlog PROPERTIES
                        INTERFACE_COMPILE_DEFINITIONS SPDLOG_FMT_EXTERNAL)
  add_link_options(-Wl,--as-needed -static-libstdc++ -static-libgcc)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
