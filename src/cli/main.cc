// halfbyte COMMAND ...: see `halfbyte --help`.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/nearest_name.h"
#include "base/temporary_path.h"
#include "cli/command.h"
#include "cli/commands.h"

namespace halfbyte {
namespace {

// " (did you mean --port?)" for the first argument that no flag of the command has the name of.
std::string Suggestion(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& argument : command.remaining()) {
    if (!argument.starts_with("--")) continue;
    const auto nearest = NearestName(argument.substr(0, argument.find('=')), names);
    return nearest ? fmt::format(" (did you mean {}?)", *nearest) : "";
  }
  return "";
}

// One line that names the command whose help explains it, or the commands there are.
void PrintUsageError(const CLI::App& app, const CLI::ParseError& error,
                     const std::string& first_argument) {
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  if (chosen != &app) {
    const std::string name = CommandWords(*chosen);
    fmt::print(stderr, "halfbyte {}: {}{} (see halfbyte {} --help)\n", name, error.what(),
               Suggestion(*chosen), name);
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

// Otherwise the next file that is opened would stand in for a closed stream and receive messages.
void OccupyStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // Not writable, so that output to a closed stdout still counts as failed.
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  }
}

// What would kill the program without a word becomes an exit code and a sentence.
void ExplainSuddenEnds() {
  OccupyStandardStreams();
  RemoveTemporaryPathsWhenKilled();
  ExitWhenAMappedFileIsTruncated();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error of the write
  std::set_new_handler([] {
    static constexpr char kMessage[] = "halfbyte: out of memory\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
    RemoveTemporaryPaths();
    ::_exit(static_cast<int>(ExitCode::kFailed));
  });
}

int Run(int argc, char** argv) {
  CLI::App app("Runs, inspects, converts and verifies 4-bit mixture-of-experts models.",
               "halfbyte");
  app.require_subcommand(1);
  app.set_version_flag("--version", HALFBYTE_VERSION);
  AddCommands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    PrintUsageError(app, e, argc > 1 ? argv[1] : "");
    return static_cast<int>(ExitCode::kUsage);
  } catch (const std::exception& e) {  // of a library, such as fmt when stdout is a full disk
    fmt::print(stderr, "halfbyte: {}\n", e.what());
    return static_cast<int>(ExitCode::kFailed);
  }
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace
}  // namespace halfbyte

int main(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::fputs("halfbyte: this processor lacks AVX2 and FMA, which halfbyte needs\n", stderr);
    return static_cast<int>(halfbyte::ExitCode::kFailed);
  }
  halfbyte::InitLogging();
  halfbyte::ExplainSuddenEnds();
  const int exit_code = halfbyte::Run(argc, argv);
  if (exit_code != static_cast<int>(halfbyte::ExitCode::kOk)) return exit_code;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("halfbyte: stdout cannot be written, so the output is incomplete\n", stderr);
    return static_cast<int>(halfbyte::ExitCode::kFailed);
  }
  return exit_code;
}
