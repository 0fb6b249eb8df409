# libhalfbyte.so: the objects of this room, every other room linked in, and only the names that
# moe_abi.map lists visible. `cmake --install BUILD --component library` installs it with its
# headers and what find_package(halfbyte) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(halfbyte_shared SHARED $<TARGET_OBJECTS:capi>)
target_link_libraries(halfbyte_shared PRIVATE capi)
set(map "${CMAKE_CURRENT_SOURCE_DIR}/moe_abi.map")
target_link_options(halfbyte_shared PRIVATE "-Wl,--version-script=${map}" "-Wl,--no-undefined"
                    "-Wl,--as-needed")
# SOVERSION rises when a program built against an older header would no longer work.
set_target_properties(halfbyte_shared PROPERTIES OUTPUT_NAME halfbyte LINKER_LANGUAGE CXX
  VERSION "${PROJECT_VERSION}" SOVERSION 1 LINK_DEPENDS "${map}"
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib" SKIP_BUILD_RPATH ON)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/halfbyte")
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/halfbyteConfig.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/halfbyteConfig.cmake" INSTALL_DESTINATION "${package_dir}"
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/halfbyteConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(TARGETS halfbyte_shared COMPONENT library LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/include/halfbyte" COMPONENT library
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/halfbyteConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/halfbyteConfigVersion.cmake"
        COMPONENT library DESTINATION "${package_dir}")
