# cmake -DSOURCE=repository -DOUT=file -P write_commit.cmake: ProgramCommit (version.h) with the
# commit of the sources. Run with every build; touches the file only when the commit changes.
execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT "${OUT}" @ONLY CONTENT
"#include \"server/version.h\"

namespace halfbyte {

std::string ProgramCommit() { return \"@commit@\"; }

}  // namespace halfbyte
")
