# halfbyte_library(NAME SOURCES a.cc ... [CUDA_SOURCES a.cu b.cc ...] [NO_CUDA_SOURCES c.cc ...]
#                  DEPS other_room fmt::fmt ...)
# One room of the house: a static library, or an interface library if it has headers only. Its
# objects also go into libhalfbyte.so (src/capi), which shows none of their symbols. CUDA_SOURCES
# are compiled in the cuda preset only (halfbyte_cuda.cmake); cudart then comes along.
# NO_CUDA_SOURCES stand in for them in all others.
function(halfbyte_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;CUDA_SOURCES;NO_CUDA_SOURCES;DEPS" ${ARGN})
  if(NOT HALFBYTE_CUDA)
    list(APPEND arg_SOURCES ${arg_NO_CUDA_SOURCES})
  elseif(arg_CUDA_SOURCES)
    list(APPEND arg_SOURCES ${arg_CUDA_SOURCES})
    list(APPEND arg_DEPS CUDA::cudart_static)
  endif()
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    if(HALFBYTE_SHARED)
      set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON
                            CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    endif()
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${name} ${scope} "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} ${scope} ${arg_DEPS})
endfunction()

# halfbyte_test(NAME SOURCES a_test.cc ... DEPS room ... [LABEL fast|slow|gpu [heavy] [threads]]
#               [COST seconds])
# A GoogleTest program; one CTest test of the same name. Tests find small data of the repository
# under the path HALFBYTE_SOURCE_DIR. Labels: slow takes over ten seconds; heavy is too slow under
# the address sanitizer and is left out there; threads is what the tsan preset builds and runs (all
# of them: target threads_tests). COST is about what it takes under a sanitizer, if that is long:
# ctest starts such tests first, so that none of them runs on alone at the end.
function(halfbyte_test name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(arg "" "COST" "SOURCES;DEPS;LABEL" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL fast)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE HALFBYTE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  # Compiling the tests takes most of a first run, running them little.
  if(HALFBYTE_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  else()
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Og>)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}")
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
  if("threads" IN_LIST arg_LABEL)
    if(NOT TARGET threads_tests)
      add_custom_target(threads_tests)
    endif()
    add_dependencies(threads_tests ${name})
  endif()
endfunction()

# halfbyte_cuda_test(NAME SOURCES a_test.cc ... DEPS room ...)
# A test that needs a GPU, in the cuda preset only: label gpu. Without a GPU its tests are skipped
# and say why. One file that runs on a machine with a driver and libc (halfbyte_cuda.cmake).
function(halfbyte_cuda_test name)
  if(HALFBYTE_CUDA)
    halfbyte_test(${name} ${ARGN} LABEL gpu)
  endif()
endfunction()

# halfbyte_bench(NAME SOURCES a_bench.cc ... DEPS room ...)
function(halfbyte_bench name)
  if(NOT HALFBYTE_BENCH)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} benchmark::benchmark)
  target_compile_definitions(${name} PRIVATE HALFBYTE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endfunction()

# halfbyte_fuzz(X_fuzz SOURCES x_fuzz.cc ... DEPS room ...)
# A libFuzzer program, in the fuzz preset only; scripts/fuzz.sh runs it with the seeds in
# tests/data/fuzz/X/.
function(halfbyte_fuzz name)
  if(NOT HALFBYTE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_compile_definitions(${name} PRIVATE HALFBYTE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
  if(NOT TARGET fuzz_targets)
    add_custom_target(fuzz_targets)
  endif()
  add_dependencies(fuzz_targets ${name})
endfunction()

# halfbyte_simd_sources(OUT_VARIABLE BODY): for a kernel body X_simd.inc, generates one source file
# per instruction set (kernels/simd16.h), each compiled with its own flags, and returns their paths.
function(halfbyte_simd_sources out_variable body)
  get_filename_component(stem ${body} NAME_WE)
  set(sources)
  foreach(isa scalar avx2 avx512)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${stem}_${isa}.cc")
    file(GENERATE OUTPUT "${source}" CONTENT
      "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${body}\"\n")
    set_source_files_properties("${source}" PROPERTIES GENERATED TRUE)
    string(TOUPPER ${isa} upper)
    # g++ 12 takes its own headers' undefined registers, and arrays of vectors that a loop fills,
    # for uninitialized variables.
    set(flags "-DHALFBYTE_SIMD_${upper} -Wno-uninitialized -Wno-maybe-uninitialized")
    if(isa STREQUAL avx512)
      string(APPEND flags " -mavx512f -mavx512bw -mavx512dq -mavx512vl")
    endif()
    set_source_files_properties("${source}" PROPERTIES COMPILE_FLAGS "${flags}")
    list(APPEND sources "${source}")
  endforeach()
  set(${out_variable} "${sources}" PARENT_SCOPE)
endfunction()
