// halfbyte bench serve: see docs/serving.md.
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "loadgen/serve_bench.h"
#include "loadgen/server_process.h"

namespace halfbyte {
namespace {

// Where prompts come from if no text is given.
constexpr std::string_view kText =
    "The number of cat is 123. The number of dog is 456. The number of bird is 789. What is the "
    "number of dog? A small house stood by the river, and every evening its lamp was lit before "
    "the boats came home. Seven times eight is fifty-six; eight times nine is seventy-two. ";

struct BenchServeFlags {
  std::string model;
  std::string url;
  std::string server_flags;
  std::string text_file;
  int64_t seconds = 600;
  bool json = false;
  ServeBenchOptions options;
};

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  for (std::string& word : CLI::detail::split_up(std::string(text))) {
    words.push_back(std::move(word));
  }
  return words;
}

Result<ExitCode> RunBenchServe(BenchServeFlags flags) {
  ServeBenchOptions& options = flags.options;
  options.limit = std::chrono::seconds(flags.seconds);
  options.text = kText;
  if (!flags.text_file.empty()) {
    HB_ASSIGN_OR_RETURN(options.text, ReadTextFile(flags.text_file));
  }
  if (const char* key = std::getenv("HALFBYTE_API_KEY")) options.key = key;
  std::optional<ServerProcess> server;
  if (flags.url.empty()) {
    std::vector<std::string> arguments = Words("serve --port 0 --log-level warning");
    arguments.push_back(flags.model);
    for (std::string& word : Words(flags.server_flags)) arguments.push_back(std::move(word));
    HB_ASSIGN_OR_RETURN(ServerProcess started, ServerProcess::Start(arguments));
    server.emplace(std::move(started));
    options.server = server->address();
  } else {
    HB_ASSIGN_OR_RETURN(options.server, ServerAddress::OfUrl(flags.url));
  }
  HB_ASSIGN_OR_RETURN(const ServeBenchReport report, BenchServe(options));
  if (server) HB_RETURN_IF_ERROR(server->Stop());
  if (flags.json) {
    PrintJson(ServeBenchJson(report));
  } else {
    fmt::print("{}", ServeBenchText(report));
  }
  return report.ok() ? ExitCode::kOk : ExitCode::kFailed;
}

void AddLoadFlags(CLI::App& command, ServeBenchOptions& options) {
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 40);
  const auto fraction = CLI::Range(0.0, 1.0);
  command.add_option("--concurrency", options.concurrency, "Clients at once: a list, 1,8,32")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 16384));
  command
      .add_option("--requests", options.requests,
                  "Of each load (default: eight per client, at least 32)")
      ->check(positive);
  command.add_option("--max-tokens", options.max_tokens, "Of each answer")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--prompt-tokens", options.prompt_tokens, "Of each prompt")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--prompts", options.prompts, "How many different ones")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command.add_flag("--ignore-eos,!--no-ignore-eos", options.ignore_eos,
                   "Every answer has --max-tokens (default)");
  command.add_option("--temperature", options.temperature, "0: greedy")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 2.0));
  command.add_option("--seed", options.seed, "Of prompts, answers and what clients do")
      ->capture_default_str();
  command
      .add_option("--disconnect-fraction", options.disconnect_fraction,
                  "Of the requests: left in the middle")
      ->check(fraction);
  command
      .add_option("--malformed-fraction", options.malformed_fraction,
                  "Of the requests: nonsense, to be answered 4xx")
      ->check(fraction);
  command.add_option("--burst", options.burst, "Further clients, one request each, after 1 s")
      ->check(CLI::Range(0, 16384));
  command
      .add_option("--stalled-clients", options.stalled_clients, "Further clients that stop reading")
      ->check(CLI::Range(0, 1024));
  command
      .add_option("--leave-together", options.leave_together,
                  "So many of the clients leave at the same time, after 1 s")
      ->check(CLI::Range(0, 16384));
  command.add_flag("--probe-live", options.probe_live, "Measure GET /live meanwhile");
}

}  // namespace

void AddBenchServe(CLI::App& bench) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* command = bench.add_subcommand(
      "serve", "A server: tokens/s and latencies for one and for many clients");
  CLI::Option_group* server = command->add_option_group("server");
  server->require_option(1);
  server->add_option("model", flags->model, "Model directory: starts a server for it");
  server->add_option("--url", flags->url,
                     "A running server of this machine: http://127.0.0.1:8000");
  command->add_option("--server-flags", flags->server_flags,
                      "Further flags of the server that is started, in quotes");
  command->add_option("--text", flags->text_file, "File that prompts are cut from");
  command->add_option("--limit", flags->seconds, "Seconds after which a load gives up")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command->add_flag("--json", flags->json, "Print everything as JSON");
  AddLoadFlags(*command, flags->options);
  OnRun(*command, [flags] { return RunBenchServe(*flags); });
}

}  // namespace halfbyte
