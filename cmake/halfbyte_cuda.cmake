# The cuda preset: finds nvcc and proves that it compiles C++20. CMake 3.25 knows no C++20 flag for
# nvcc 13 (it refuses CUDA_STANDARD 20, or drops it), so the flag is passed by hand and a
# static_assert checks that it arrived.
if(NOT HALFBYTE_CUDA)
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "halfbyte: the cuda preset needs nvcc; install the CUDA toolkit and put nvcc "
                      "on the PATH, or name it in the environment variable CUDACXX")
endif()
set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures to compile for")
enable_language(CUDA)
string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")

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
