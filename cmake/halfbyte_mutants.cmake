# halfbyte_mutant(NAME SOURCE room/file.cc [FLAGS "compile flags of that file"]
#                 TEST target gtest-filter)
# The test program `target` with one source file replaced by a copy that has the fault of
# tests/mutants/NAME.mutant, and the CTest test mutant_NAME, which passes if a test of the filter
# fails. The copy's object is given to the linker before the libraries, so the original's is not
# taken from its archive; for that the original is compiled alone, in unity builds too.
function(halfbyte_mutant name)
  cmake_parse_arguments(arg "" "SOURCE;FLAGS" "TEST" ${ARGN})
  list(GET arg_TEST 0 target)
  list(GET arg_TEST 1 filter)
  set(script "${CMAKE_SOURCE_DIR}/tests/mutants/mutant.py")
  set(mutant "${CMAKE_SOURCE_DIR}/tests/mutants/${name}.mutant")
  set(original "${CMAKE_SOURCE_DIR}/src/${arg_SOURCE}")
  set(copy "${CMAKE_CURRENT_BINARY_DIR}/${name}.cc")
  add_custom_command(OUTPUT "${copy}" DEPENDS "${script}" "${mutant}" "${original}"
    COMMAND "${Python3_EXECUTABLE}" "${script}" write "${mutant}" "${original}" "${copy}"
    COMMENT "Mutant ${name}")
  set_source_files_properties("${copy}" PROPERTIES COMPILE_FLAGS "${arg_FLAGS}")
  get_filename_component(room "${arg_SOURCE}" DIRECTORY)
  get_filename_component(room "${room}" NAME)
  set_source_files_properties("${original}" TARGET_DIRECTORY ${room}
                              PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set(program mutant_${name})
  add_executable(${program} "${copy}" $<TARGET_OBJECTS:${target}>)
  target_link_libraries(${program} PRIVATE $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
  add_test(NAME ${program} COMMAND "${Python3_EXECUTABLE}" "${script}" check "${mutant}"
           "${original}" $<TARGET_FILE:${program}> "${filter}")
  set_tests_properties(${program} PROPERTIES LABELS fast)
endfunction()
