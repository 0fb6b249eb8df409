// halfbyte serve MODEL_DIR: see docs/serving.md.
#include "server/serve.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/flag_sources.h"
#include "cli/model_flags.h"

namespace halfbyte {
namespace {

// As they are typed; MakeServeOptions turns them into what the server takes.
struct ServeFlags {
  ServeOptions options;
  ModelFlags model;
  FakeModel fake;
  std::optional<std::filesystem::path> config;
  bool print_config = false;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string load_format = "auto";
  std::string generation_config = "auto";
  std::string reasoning_field = "both";
  std::string unknown_fields = "drop";
  std::string logprobs_mode = "raw_logprobs";
  std::string kv_cache_dtype = "auto";
  std::optional<std::string> reasoning_effort;
  bool deterministic = true;
  double queue_timeout = 300;
  std::optional<double> request_timeout;
  double ping_interval = 15;
  double shutdown_timeout = 30;
  int64_t block_size = kContextBlockTokens;
  std::string tokenizer_mode, reasoning_parser, tool_call_parser;
  bool auto_tool_choice = false, trust_remote_code = false;
};

const std::vector<std::string> kSecretFlags = {"api-key"};

// A flag that may be given several times, one value each.
template <class T>
CLI::Option* AddRepeatable(CLI::App& command, const std::string& name, std::vector<T>& values,
                           const std::string& help) {
  return command.add_option(name, values, help + " (repeatable)")->allow_extra_args(false);
}

template <class T>
CLI::Option* AddDefaulted(CLI::App& command, const std::string& name, T& value,
                          const std::string& help) {
  return command.add_option(name, value, help)->capture_default_str();
}

const CLI::Range kCount(int64_t{1}, int64_t{1} << 40);
const CLI::Range kCountOrNone(int64_t{0}, int64_t{1} << 40);
const CLI::Range kSeconds(0.0, 1e9);

void AddListening(CLI::App& command, ServeFlags& flags) {
  HttpOptions& http = flags.options.http;
  ServiceOptions& service = flags.options.service;
  AddDefaulted(command, "--host", http.host, "Address or name to listen on");
  AddDefaulted(command, "--port", http.port, "0: any that is free")->check(CLI::Range(0, 65535));
  command.add_option("--uds", http.unix_path, "Listen on this unix socket instead");
  command.add_option("--root-path", service.root_path,
                     "Where a proxy shows the server, such as /llm; answered with and without it");
  AddRepeatable(command, "--served-model-name", flags.options.load.served_names,
                "Name of the model for clients (default: the directory's)");
  AddRepeatable(command, "--api-key", flags.options.api_keys, "A key that clients must bring");
  command.add_option("--api-key-file", flags.options.api_key_file,
                     "File of further keys, one per line; SIGHUP reads it again");
  AddRepeatable(command, "--allowed-origins", service.allowed_origins,
                "Origin whose pages may call the server; *: all");
  AddRepeatable(command, "--allowed-hosts", service.allowed_hosts,
                "Name that clients may call the server by, beside its addresses, localhost and "
                "--host; .example.com: all below it; *: any; not asked with keys");
  AddDefaulted(command, "--max-connections", http.max_connections, "More get 503")->check(kCount);
  command
      .add_option("--max-connections-per-client", http.max_connections_per_client,
                  "Of one address; more get 503 (default: half of all, at least 64)")
      ->check(kCount);
  AddDefaulted(command, "--min-client-rate", http.min_rate,
               "Bytes per second that a client must send of a body, or take of what waits for it")
      ->check(kCount);
  AddDefaulted(command, "--max-request-bytes", http.max_body_bytes, "Larger bodies get 413")
      ->check(kCount);
}

void AddModelParts(CLI::App& command, ServeFlags& flags) {
  ServedModelOptions& load = flags.options.load;
  AddDefaulted(command, "--load-format", flags.load_format,
               "auto; fake: no weights, made-up text, for testing clients")
      ->check(CLI::IsMember({"auto", "fake"}));
  command
      .add_option("--max-model-len", load.max_model_len,
                  "Most tokens of prompt and answer (default: the most that fits)")
      ->check(kCount);
  AddDefaulted(command, "--generation-config", flags.generation_config,
               "auto: defaults of generation_config.json; none: without")
      ->check(CLI::IsMember({"auto", "none"}));
  command.add_option("--override-generation-config", load.override_generation_config,
                     "JSON of such defaults that count more");
  command.add_option("--seed", flags.options.service.api.seed,
                     "Seed of requests that bring none (default: drawn for each)");
  AddDefaulted(command, "--kv-cache-dtype", flags.kv_cache_dtype, "auto, fp8")
      ->check(CLI::IsMember({"auto", "fp8"}));
  command.add_flag("--deterministic,!--no-deterministic", flags.deterministic,
                   "Results depend on the request alone (there is no other way so far)");
  command.add_option("--default-thinking", load.thinking,
                     "true or false: chats think unless they say otherwise (default: the model's)");
  command
      .add_option("--default-reasoning-effort", flags.reasoning_effort,
                  "low, high, max (default: the model's)")
      ->check(CLI::IsMember({"low", "high", "max"}));
}

void AddScheduling(CLI::App& command, ServeFlags& flags) {
  ServedModelOptions& load = flags.options.load;
  ServiceOptions& service = flags.options.service;
  AddDefaulted(command, "--max-num-seqs", service.scheduler.max_sequences,
               "Sequences that run at the same time")
      ->check(CLI::Range(1, 1 << 16));
  AddDefaulted(command, "--max-num-batched-tokens", service.scheduler.max_batch_tokens,
               "Tokens of a step; at least max-num-seqs + 128")
      ->check(CLI::Range(1, 1 << 20));
  AddDefaulted(command, "--block-size", flags.block_size, "Tokens of a KV block; 256 only")
      ->check(CLI::IsMember({kContextBlockTokens}));
  command
      .add_option(
          "--kv-cache-memory-bytes", load.kv_cache_bytes,
          "Memory of the KV cache (default: half of what is free after loading; on a GPU the "
          "rest of --gpu-memory-utilization, which does not count beside this)")
      ->check(kCount);
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching",
                   service.scheduler.prefix_cache, "Keep prompts for requests that begin alike");
  command
      .add_option("--prefix-cache-snapshots", load.prefix_cache_snapshots,
                  "Points from which a cached prompt can be continued (default: a tenth of the KV "
                  "memory)")
      ->check(kCountOrNone);
  AddDefaulted(command, "--max-queued-requests", service.max_queued_requests,
               "Waiting requests; more get --overload-status")
      ->check(kCountOrNone);
  AddDefaulted(command, "--overload-status", service.overload_status, "429, 503 or 529")
      ->check(CLI::IsMember({429, 503, 529}));
  AddDefaulted(command, "--queue-timeout", flags.queue_timeout, "Seconds to wait for the batch")
      ->check(kSeconds);
  command
      .add_option("--request-timeout", flags.request_timeout,
                  "Seconds for a whole request (default: none)")
      ->check(kSeconds);
  AddDefaulted(command, "--shutdown-timeout", flags.shutdown_timeout,
               "Seconds that running requests get after SIGTERM")
      ->check(kSeconds);
}

void AddInterface(CLI::App& command, ServeFlags& flags) {
  ApiOptions& api = flags.options.service.api;
  AddDefaulted(command, "--max-n", api.max_n, "Most choices of a request")->check(kCount);
  AddDefaulted(command, "--max-logprobs", api.max_logprobs, "Most top_logprobs")
      ->check(CLI::Range(0, 20));
  AddDefaulted(command, "--logprobs-mode", flags.logprobs_mode,
               "raw_logprobs: the model's; processed_logprobs: after biases and penalties")
      ->check(CLI::IsMember({"raw_logprobs", "processed_logprobs"}));
  AddDefaulted(command, "--unknown-fields", flags.unknown_fields,
               "drop: name them in x-halfbyte-ignored; reject: 400")
      ->check(CLI::IsMember({"drop", "reject"}));
  command.add_flag("--clamp-max-tokens", api.clamp_max_tokens,
                   "Shorten a max_tokens that does not fit instead of refusing it");
  command.add_flag("--enable-force-include-usage", api.force_include_usage,
                   "Streams end with their usage, asked for or not");
  AddDefaulted(command, "--reasoning-field", flags.reasoning_field,
               "Name of reasoning in answers: both, reasoning_content, reasoning")
      ->check(CLI::IsMember({"both", "reasoning_content", "reasoning"}));
  command.add_flag("--native-developer-role", api.native_developer_role,
                   "developer messages in the model's own role instead of system");
  command.add_flag("--allow-control-tokens-in-content", api.allow_control_tokens_in_content,
                   "Text of messages may spell control tokens, as in the reference encoder");
  AddDefaulted(command, "--sse-ping-interval", flags.ping_interval,
               "Seconds of silence after which a stream gets a comment")
      ->check(kSeconds);
}

void AddReporting(CLI::App& command, ServeFlags& flags) {
  ServiceOptions& service = flags.options.service;
  AddDefaulted(command, "--metrics-prefix", service.metrics_prefix,
               "Of the names of metrics; vllm for dashboards made for it");
  AddDefaulted(command, "--log-level", flags.log_level, "debug, info, warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  AddDefaulted(command, "--log-format", flags.log_format, "text, json")
      ->check(CLI::IsMember({"text", "json"}));
  command.add_flag("--log-prompts", service.log_prompts, "Bodies of requests go to the log");
  command.add_option("--config", flags.config, "TOML file of flags: max-model-len = 4096")
      ->configurable(false);
  command.add_flag("--print-config", flags.print_config, "Print all flags as JSON and end")
      ->configurable(false);
}

// Flags of other servers that have nothing to choose here.
void AddForeign(CLI::App& command, ServeFlags& flags) {
  const auto only = CLI::IsMember({"deepseek_v4"});
  command.add_option("--tokenizer-mode", flags.tokenizer_mode, "deepseek_v4: what is done anyway")
      ->check(CLI::IsMember({"auto", "deepseek_v4"}));
  command.add_option("--reasoning-parser", flags.reasoning_parser, "As above")->check(only);
  command.add_option("--tool-call-parser", flags.tool_call_parser, "As above")->check(only);
  command.add_flag("--enable-auto-tool-choice", flags.auto_tool_choice, "As above");
  command.add_flag("--trust-remote-code", flags.trust_remote_code,
                   "No code from a model directory ever runs, with or without");
}

void AddFakeFlags(CLI::App& command, FakeModel& fake) {
  AddDefaulted(command, "--fake-step-time", fake.step_seconds, "Seconds of a step")
      ->check(kSeconds);
  AddDefaulted(command, "--fake-token-time", fake.token_seconds, "Seconds more for each token")
      ->check(kSeconds);
  AddDefaulted(command, "--fake-load-time", fake.load_seconds, "Seconds of loading")
      ->check(kSeconds);
  AddDefaulted(command, "--fake-fail-at-step", fake.fail_at_step, "The engine fails; 0: never")
      ->check(kCountOrNone);
}

// What is typed -> what is served. Adds sentences about what contradicts itself.
ServeOptions MakeServeOptions(const ServeFlags& flags, std::vector<std::string>& contradictions) {
  using Seconds = std::chrono::duration<double>;
  ServeOptions options = flags.options;
  ServedModelOptions& load = options.load;
  ServiceOptions& service = options.service;
  if (auto transformer = TransformerOptionsOf(flags.model)) {
    load.transformer = *std::move(transformer);
  } else {
    contradictions.push_back(transformer.error().message);
  }
  if (flags.kv_cache_dtype == "fp8" && flags.model.math == "fp32") {
    contradictions.push_back("--kv-cache-dtype fp8 and --math fp32, whose cache is fp32");
  }
  if (!flags.deterministic) {
    contradictions.push_back(
        "--no-deterministic asks for faster variants that give other results; there are none");
  }
  load.directory = flags.model.directory;
  load.threads = flags.model.threads;
  load.transformer.batch_tokens = service.scheduler.max_batch_tokens;
  load.transformer.logit_rows = service.scheduler.max_sequences;
  if (load.kv_cache_bytes) load.transformer.gpu_memory = 1;  // the flag decides alone
  load.max_num_seqs = service.scheduler.max_sequences;
  load.read_generation_config = flags.generation_config == "auto";
  if (flags.reasoning_effort)
    load.reasoning_effort = *ParseReasoningEffort(*flags.reasoning_effort);
  if (flags.load_format == "fake") load.fake = flags.fake;
  service.processed_logprobs = flags.logprobs_mode == "processed_logprobs";
  service.queue_timeout = Seconds(flags.queue_timeout);
  if (flags.request_timeout) service.request_timeout = Seconds(*flags.request_timeout);
  service.sse_ping_interval = Seconds(flags.ping_interval);
  options.shutdown_timeout = Seconds(flags.shutdown_timeout);
  service.api.reject_unknown_fields = flags.unknown_fields == "reject";
  service.api.reasoning_field = flags.reasoning_field == "both" ? ReasoningField::kBoth
                                : flags.reasoning_field == "reasoning"
                                    ? ReasoningField::kReasoning
                                    : ReasoningField::kReasoningContent;
  for (std::string& found : Contradictions(options)) contradictions.push_back(std::move(found));
  return options;
}

void NoteForeignFlags(const ServeFlags& flags) {
  const bool any = !flags.tokenizer_mode.empty() || !flags.reasoning_parser.empty() ||
                   !flags.tool_call_parser.empty() || flags.auto_tool_choice ||
                   flags.trust_remote_code;
  if (!any) return;
  spdlog::info(
      "--tokenizer-mode, --reasoning-parser, --tool-call-parser, --enable-auto-tool-choice and "
      "--trust-remote-code change nothing here");
}

// A directory that cannot be opened is left to what loads it.
void ChooseDevice(const ServeFlags& flags, ServeOptions& options) {
  ServedModelOptions& load = options.load;
  if (flags.model.device == "auto" && !load.fake) {
    if (const auto checkpoint = ModelCheckpoint::Open(load.directory)) {
      spdlog::info("{}", ChooseDevice(*checkpoint, load.transformer));
    }
  }
  if (load.transformer.gpu) options.service.device = "cuda";
}

ExitCode RunServe(CLI::App& command, ServeFlags& flags) {
  if (const Status filled = FillFlags(command, flags.config); !filled) {
    PrintFailure(command, filled.error());
    return ExitCode::kUsage;
  }
  std::vector<std::string> contradictions;
  ServeOptions options = MakeServeOptions(flags, contradictions);
  if (!contradictions.empty()) {
    PrintFailure(command, {fmt::format("{}", fmt::join(contradictions, "; "))});
    return ExitCode::kUsage;
  }
  if (flags.print_config) {
    PrintJson(FlagValues(command, kSecretFlags));
    return ExitCode::kOk;
  }
  try {
    InitServiceLogging(spdlog::level::from_str(flags.log_level), flags.log_format == "json");
  } catch (const std::system_error& error) {
    PrintFailure(command, {fmt::format("the thread of the log cannot be started: {}: raise the "
                                       "limit (ulimit -u, ulimit -v)",
                                       error.code().message())});
    return static_cast<ExitCode>(ServeEnd::kMemory);
  }
  NoteForeignFlags(flags);
  ChooseDevice(flags, options);
  const ServeResult result = Serve(options);
  if (!result.message.empty()) WriteToLog(FailureLine(command, {result.message}));
  FlushServiceLog();
  return static_cast<ExitCode>(result.end);
}

}  // namespace

void AddServe(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serve the model over the OpenAI interface");
  AddModelFlags(*command, flags->model);
  AddListening(*command, *flags);
  AddModelParts(*command, *flags);
  AddScheduling(*command, *flags);
  AddInterface(*command, *flags);
  AddReporting(*command, *flags);
  AddForeign(*command, *flags);
  AddFakeFlags(*command, flags->fake);
  OnRun(*command, [command, flags]() -> Result<ExitCode> { return RunServe(*command, *flags); });
}

}  // namespace halfbyte
