// halfbyte generate MODEL_DIR (--prompt TEXT | --chat TEXT | --ids FILE): see docs/generate.md.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/memory_usage.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/ranked_command.h"
#include "offline/generator.h"
#include "text/chat.h"
#include "text/generation_config.h"
#include "text/model_defaults.h"
#include "text/stop_matcher.h"
#include "text/token_ids.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace halfbyte {
namespace {

struct GenerateFlags {
  ModelFlags model;
  std::optional<std::string> prompt;
  std::optional<std::string> chat;
  std::optional<std::string> ids;
  std::string system;
  std::optional<bool> thinking;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<uint64_t> seed;
  std::string generation_config = "auto";
  bool json = false;
};

// What the model's makers recommend, and what the flags say instead.
Result<GenerationDefaults> ResolveGeneration(const GenerateFlags& flags) {
  GenerationDefaults defaults;
  if (flags.generation_config == "auto") {
    HB_ASSIGN_OR_RETURN(defaults, ReadGenerationDefaults(flags.model.directory));
  }
  SamplingParams& sampling = defaults.sampling;
  sampling.temperature = flags.temperature.value_or(sampling.temperature);
  sampling.top_p = flags.top_p.value_or(sampling.top_p);
  sampling.top_k = flags.top_k.value_or(sampling.top_k);
  sampling.min_p = flags.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = flags.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.seed = flags.seed ? *flags.seed : std::random_device()();
  HB_RETURN_IF_ERROR(Validate(sampling));
  return defaults;
}

// With --ids a model without tokenizer.json, or with one that we cannot read, is fine: ids go in
// and come out.
Result<std::optional<Tokenizer>> LoadTokenizer(const GenerateFlags& flags) {
  const std::filesystem::path path = flags.model.directory / "tokenizer.json";
  std::error_code error;  // an unreadable directory is for Tokenizer::Load to report
  if (flags.ids && !std::filesystem::exists(path, error) && !error) return std::nullopt;
  auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer && flags.ids) {
    spdlog::warn("{}; so ids come out, not text", tokenizer.error().message);
    return std::nullopt;
  }
  HB_ASSIGN_OR_RETURN(Tokenizer loaded, std::move(tokenizer));
  return loaded;
}

Result<std::vector<int32_t>> EncodePrompt(const GenerateFlags& flags,
                                          const std::optional<Tokenizer>& tokenizer) {
  if (flags.ids) return ReadTokenIds(*flags.ids);
  if (flags.prompt) return tokenizer->EncodePrompt(*flags.prompt, /*add_special_tokens=*/true);
  HB_ASSIGN_OR_RETURN(const ModelDefaults defaults, ReadModelDefaults(flags.model.directory));
  std::vector<ChatMessage> messages;
  if (!flags.system.empty()) messages.push_back({ChatRole::kSystem, flags.system, ""});
  messages.push_back({ChatRole::kUser, *flags.chat, ""});
  return EncodeChat(*tokenizer, messages,
                    {.thinking = flags.thinking.value_or(defaults.thinking),
                     .reasoning_effort = defaults.reasoning_effort},
                    defaults.wording);
}

// Turns tokens into text as they come and prints it, unless the caller wants JSON, up to the first
// of the texts that end it.
class Printer {
 public:
  Printer(const std::optional<Tokenizer>& tokenizer, const GenerationDefaults& defaults, bool quiet)
      : tokenizer_(tokenizer),
        quiet_(quiet),
        min_tokens_(defaults.min_new_tokens),
        stops_(defaults.stop_strings) {}

  // False: the text has ended.
  bool Token(int32_t token) {
    ++tokens_;
    if (!tokenizer_) {
      Print(fmt::format("{}{}", text_.empty() ? "" : " ", token));
    } else if (const auto bytes = tokenizer_->TokenBytes(token);
               bytes && !tokenizer_->IsSpecial(token)) {
      Print(stops_.Push(stream_.Push(*bytes), tokens_ >= min_tokens_));
    }
    return !stops_.matched();
  }
  void End() {
    Print(stops_.Push(stream_.Flush(), /*counts=*/true));
    Print(stops_.Flush());
    if (quiet_) return;
    fmt::print("\n");
    std::fflush(stdout);
  }
  const std::string& text() const { return text_; }

 private:
  void Print(const std::string& piece) {
    text_ += piece;
    if (quiet_ || piece.empty()) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  }

  const std::optional<Tokenizer>& tokenizer_;
  const bool quiet_;
  const int64_t min_tokens_;
  int64_t tokens_ = 0;
  Utf8Stream stream_;
  StopMatcher stops_;
  std::string text_;
};

void PrintSummary(const GenerateFlags& flags, const GenerateRequest& request,
                  const GenerateResult& result, const std::string& text) {
  const double prompt = static_cast<double>(request.prompt.size());
  // The first token comes out of the prompt's own pass.
  const double steps = static_cast<double>(result.tokens.size()) - 1;
  const double prompt_rate = prompt / std::max(result.prompt_seconds, 1e-9);
  const double rate = steps > 0 ? steps / std::max(result.generate_seconds, 1e-9) : 0;
  const int64_t peak = PeakResidentBytes();
  const char* finish = result.finish == FinishReason::kStop ? "stop" : "length";
  if (!flags.json) {
    fmt::print(stderr,
               "{} prompt tokens at {:.1f} tokens/s, {} generated at {:.1f} tokens/s ({}), peak "
               "memory {}\n",
               request.prompt.size(), prompt_rate, result.tokens.size(), rate, finish,
               HumanBytes(peak));
    return;
  }
  const Json json = {{"text", text},
                     {"token_ids", result.tokens},
                     {"finish_reason", finish},
                     {"prompt_tokens", request.prompt.size()},
                     {"completion_tokens", result.tokens.size()},
                     {"prompt_tokens_per_second", prompt_rate},
                     {"tokens_per_second", rate},
                     {"peak_memory_bytes", peak},
                     {"seed", request.sampling.seed}};
  fmt::print("{}\n", json.dump());
}

// --max-tokens, or what the model's makers recommend, or as many as the model's context and the
// memory for its cache hold.
Result<std::optional<int64_t>> MostTokens(const GenerateFlags& flags,
                                          const GenerationDefaults& defaults,
                                          const OpenedModel& model, Communicator& ranks,
                                          int64_t prompt) {
  const int64_t context = model.checkpoint.config().max_position_embeddings;
  // What cannot be is for Generate to refuse.
  if (flags.max_tokens || prompt == 0 || prompt >= context) return flags.max_tokens;
  HB_ASSIGN_OR_RETURN(const int64_t mine, AffordableContext(model, flags.model, context));
  HB_ASSIGN_OR_RETURN(const auto all, ranks.Collect(std::span<const int64_t>(&mine, 1)));
  const int64_t affordable = std::ranges::min(all);
  std::optional<int64_t> recommended;
  if (defaults.max_new_tokens || defaults.max_length) {
    recommended = std::min(context - prompt, defaults.MaxTokens(prompt, context));
  }
  if (affordable == context) return recommended;
  if (affordable <= prompt) return 1;  // for LoadModel to refuse
  const int64_t tokens = affordable - prompt;
  if (recommended && *recommended <= tokens) return recommended;
  if (ranks.first()) {
    spdlog::warn("memory holds a cache of {} of the model's {} tokens: at most {} are generated",
                 affordable, context, tokens);
  }
  return tokens;
}

Result<ExitCode> RunGenerate(const GenerateFlags& flags, Communicator& ranks) {
  GenerateRequest request;
  HB_ASSIGN_OR_RETURN(const GenerationDefaults defaults, ResolveGeneration(flags));
  request.sampling = defaults.sampling;
  request.masked_ids = defaults.suppress_tokens;
  request.min_tokens = defaults.min_new_tokens;
  // Every rank draws the same tokens.
  HB_RETURN_IF_ERROR(
      ranks.Broadcast(std::as_writable_bytes(std::span(&request.sampling.seed, 1)), /*root=*/0));
  HB_ASSIGN_OR_RETURN(const std::optional<Tokenizer> tokenizer, LoadTokenizer(flags));
  HB_ASSIGN_OR_RETURN(request.prompt, EncodePrompt(flags, tokenizer));
  HB_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(flags.model, ranks));
  HB_ASSIGN_OR_RETURN(request.max_tokens,
                      MostTokens(flags, defaults, opened, ranks, std::ssize(request.prompt)));
  // Beyond the context is for Generate to refuse.
  const int64_t context = opened.checkpoint.config().max_position_embeddings;
  const int64_t tokens =
      std::min(context, std::ssize(request.prompt) +
                            std::min(context, request.max_tokens.value_or(context)));
  HB_ASSIGN_OR_RETURN(const LoadedModel model,
                      LoadModel(std::move(opened), flags.model,
                                {.context_tokens = tokens, .context_flag = "--max-tokens"}));
  request.stop_ids = model.transformer->config().eos_token_ids;

  Printer printer(tokenizer, defaults, /*quiet=*/flags.json || !ranks.first());
  HB_ASSIGN_OR_RETURN(const GenerateResult result,
                      GenerateTokens(*model.transformer, request,
                                     [&](int32_t token) { return printer.Token(token); }));
  printer.End();
  if (!ranks.first()) return ExitCode::kOk;
  PrintSummary(flags, request, result, printer.text());
  return ExitCode::kOk;
}

}  // namespace

void AddGenerate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Generate text");
  AddModelFlags(*command, flags->model);
  CLI::Option_group* input = command->add_option_group("input");
  input->add_option("--prompt", flags->prompt,
                    "Text to continue, as it is; control tokens in it are recognized");
  CLI::Option* chat = input->add_option("--chat", flags->chat,
                                        "A user's message, answered in the model's chat format");
  input->add_option("--ids", flags->ids, "JSON file: a list of token ids to continue");
  input->require_option(1);
  command->add_option("--system", flags->system, "System text before the message (with --chat)")
      ->needs(chat);
  command
      ->add_option("--thinking", flags->thinking,
                   "true or false: reason before answering (with --chat; default: the model's)")
      ->needs(chat);
  command->add_option("--max-tokens", flags->max_tokens,
                      "Most tokens to generate (default: generation_config.json's max_new_tokens, "
                      "or to the end of the model's context)");
  command->add_option("--temperature", flags->temperature,
                      "0 takes the best token; defaults of these five: generation_config.json");
  command->add_option("--top-p", flags->top_p, "Keep the most probable tokens up to this sum");
  command->add_option("--top-k", flags->top_k, "Keep this many of the most probable tokens");
  command->add_option("--min-p", flags->min_p,
                      "Keep tokens with at least this share of the best one's probability");
  command->add_option("--repetition-penalty", flags->repetition_penalty,
                      "Above 1: against tokens of prompt and answer");
  command
      ->add_option("--generation-config", flags->generation_config,
                   "auto: defaults of generation_config.json; none: without")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Makes sampling repeatable (default: random)")
      ->check([](const std::string& text) -> std::string {
        return text.starts_with('-') ? text + " is negative" : "";
      });
  command->add_flag("--json", flags->json, "Print one JSON object instead of streaming the text");
  OnRunRanked(*command, [flags](Communicator& ranks) { return RunGenerate(*flags, ranks); });
}

}  // namespace halfbyte
