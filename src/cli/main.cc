// halfbyte COMMAND ...: see `halfbyte --help`.
#include <cstdio>
#include <string>

#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/commands.h"

namespace halfbyte {
namespace {

// One line that names the command whose help explains it, or the commands there are.
void PrintUsageError(const CLI::App& app, const CLI::ParseError& error,
                     const std::string& first_argument) {
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  if (chosen != &app) {
    const std::string name = CommandWords(*chosen);
    fmt::print(stderr, "halfbyte {}: {} (see halfbyte {} --help)\n", name, error.what(), name);
    return;
  }
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  const std::string problem = first_argument.empty() ? "a command is required"
                              : first_argument[0] == '-'
                                  ? fmt::format("a command must come before {}", first_argument)
                                  : fmt::format("there is no command {}", first_argument);
  fmt::print(stderr, "halfbyte: {}; choose from {} (see halfbyte --help)\n", problem, names);
}

}  // namespace
}  // namespace halfbyte

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
    halfbyte::PrintUsageError(app, e, argc > 1 ? argv[1] : "");
    return static_cast<int>(halfbyte::ExitCode::kUsage);
  }
  return static_cast<int>(halfbyte::ExitCode::kOk);
}
