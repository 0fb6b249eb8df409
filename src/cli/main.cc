// halfbyte COMMAND ...: see `halfbyte --help`.
#include <cstdio>

#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::fputs("halfbyte: this processor lacks AVX2 and FMA, which halfbyte needs\n", stderr);
    return static_cast<int>(halfbyte::ExitCode::kFailed);
  }
  halfbyte::InitLogging();
  halfbyte::ExitWhenAMappedFileIsTruncated();
  CLI::App app("Runs, inspects, converts and verifies 4-bit mixture-of-experts models.",
               "halfbyte");
  app.require_subcommand(1);
  app.set_version_flag("--version", HALFBYTE_VERSION);
  halfbyte::AddCommands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "halfbyte: %s (see halfbyte --help)\n", e.what());
    return static_cast<int>(halfbyte::ExitCode::kUsage);
  }
  return static_cast<int>(halfbyte::ExitCode::kOk);
}
