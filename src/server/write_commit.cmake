# cmake -DSOURCE=repository -DOUT=file -P write_commit.cmake: a header with the commit of the
# sources, touched only when it changes. Run with every build.
execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "inline constexpr char kCommit[] = \"@commit@\";\n" @ONLY)
