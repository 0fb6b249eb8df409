#include "server/load_model.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory_plan.h"
#include "checkpoint/model_checkpoint.h"
#include "engine/fake_executor.h"
#include "executor/model_executor.h"
#include "model/checkpoint_weights.h"
#include "model/model_memory.h"
#include "server/fingerprint.h"
#include "server/watched_executor.h"
#include "text/generation_config.h"
#include "text/model_defaults.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTemplate = size_t{16} << 20;
constexpr int64_t kFakeModelLen = 4096;
constexpr int64_t kWindow = 128;
constexpr int64_t kMaxEffortTokens = 393216;  // server.md §3.2

std::string DirectoryName(const fs::path& directory) {
  const fs::path path = fs::absolute(directory).lexically_normal();
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return name.empty() ? "model" : name.string();
}

// The token after each one: see FakeModel.
Result<std::vector<int32_t>> Successors(const Tokenizer& tokenizer) {
  std::vector<int32_t> next(static_cast<size_t>(tokenizer.vocab_size()));
  const auto printable = [&](int32_t id) {
    const auto bytes = tokenizer.TokenBytes(id);
    return bytes && !tokenizer.IsSpecial(id) && !bytes->empty() &&
           std::ranges::all_of(*bytes, [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ' ';
           });
  };
  int32_t first = 0;
  while (first < tokenizer.vocab_size() && !printable(first)) ++first;
  if (first == tokenizer.vocab_size()) {
    return MakeError("{}: no token is plain text, which --load-format fake would write",
                     tokenizer.source());
  }
  int32_t follower = first;
  for (int32_t id = tokenizer.vocab_size() - 1; id >= 0; --id) {
    next[static_cast<size_t>(id)] = follower;
    if (printable(id)) follower = id;
  }
  return next;
}

Result<std::unique_ptr<Executor>> MakeFake(const ServedModelOptions& options,
                                           const Tokenizer& tokenizer) {
  const FakeModel& fake = *options.fake;
  HB_ASSIGN_OR_RETURN(auto next, Successors(tokenizer));
  const auto duration = [](double seconds) {
    return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  };
  std::this_thread::sleep_for(duration(fake.load_seconds));
  FakeOptions made{
      .limits = {.window = kWindow,
                 .replay_tokens = FakeExecutor::ReplayTokens(kWindow),
                 .batch_tokens = options.transformer.batch_tokens,
                 .max_model_len = options.max_model_len.value_or(kFakeModelLen),
                 .vocabulary = tokenizer.vocab_size()},
      .script = [next = std::move(next)](SequenceId, int64_t,
                                         int32_t id) { return next[static_cast<size_t>(id)]; },
      .step_time = duration(fake.step_seconds),
      .token_time = duration(fake.token_seconds),
      .fail_at_step = fake.fail_at_step};
  KvPoolSizes& pools = made.limits.pools;
  pools.state_slots = options.max_num_seqs;
  pools.context_blocks =
      options.max_num_seqs *
      ((made.limits.max_model_len + kContextBlockTokens - 1) / kContextBlockTokens);
  pools.tails = options.prefix_cache_snapshots.value_or(options.max_num_seqs);
  pools.window_pages = KvPoolSizes::WindowPages(options.max_num_seqs, made.limits.batch_tokens,
                                                pools.tails, kWindow);
  return std::make_unique<FakeExecutor>(std::move(made));
}

// The cache of the flag, or of what the rest of the plan leaves free: on a GPU all, which is
// bounded already, else half.
int64_t CacheBytes(const ServedModelOptions& options, const MemoryPlan& rest,
                   const AvailableMemory& available) {
  constexpr int64_t kUnknownMemory = int64_t{1} << 31;
  if (options.kv_cache_bytes) return *options.kv_cache_bytes;
  int64_t free = kUnknownMemory;
  if (available.resident) free = available.resident->bytes - rest.resident_bytes();
  if (available.addresses) {
    free = std::min(free, available.addresses->bytes - rest.resident_bytes());
  }
  return std::max<int64_t>(0, free) / (options.transformer.gpu ? 1 : 2);
}

// What loading and serving take, asked for now. The executor's options come out of it.
Result<ModelExecutorOptions> PlanMemory(const ServedModelOptions& options,
                                        const ModelCheckpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  if (options.max_model_len.value_or(0) > config.max_position_embeddings) {
    return MakeError("--max-model-len {} exceeds the model's {}", *options.max_model_len,
                     config.max_position_embeddings);
  }
  HB_ASSIGN_OR_RETURN(const AvailableMemory available, AvailableTo(options.transformer));
  HB_ASSIGN_OR_RETURN(MemoryPlan plan, PlanModel(CheckpointWeights(checkpoint), options.transformer,
                                                 options.threads));
  if (!options.transformer.gpu) plan.Add("requests", options.request_bytes);
  const std::string subject = options.directory.string();
  HB_RETURN_IF_ERROR(plan.Check(available, subject,
                                "give smaller --max-num-batched-tokens and --max-request-bytes or "
                                "fewer --threads, or more memory"));
  const ModelExecutorOptions executor{.max_sequences = options.max_num_seqs,
                                      .max_model_len = options.max_model_len,
                                      .kv_memory_bytes = CacheBytes(options, plan, available),
                                      .snapshots = options.prefix_cache_snapshots};
  HB_ASSIGN_OR_RETURN(const ExecutorLimits limits,
                      PlanExecutor(config, options.transformer, executor));
  HB_ASSIGN_OR_RETURN(const KvLayout units, KvLayout::Create(config, options.transformer.math));
  plan.Add("KV cache", options.kv_cache_bytes.value_or(units.BytesOf(limits.pools)));
  HB_RETURN_IF_ERROR(
      plan.Check(available, subject, "give a smaller --kv-cache-memory-bytes or --max-model-len"));
  spdlog::info("memory: {}", plan.Describe());
  return executor;
}

// How the experts, which are nearly all of the weights, are stored.
Result<std::string> PrecisionOf(const ModelCheckpoint& checkpoint) {
  HB_ASSIGN_OR_RETURN(const StoredWeight weight,
                      checkpoint.FindWeight(ModuleKey::Layer(0, Module::kExpertGate, 0)));
  return std::string(StoredFormatName(weight.format));
}

std::vector<fs::path> FilesOf(const ModelCheckpoint& checkpoint) {
  std::vector<fs::path> files;
  for (const auto& file : checkpoint.checkpoint().files()) files.push_back(file->path());
  return files;
}

Status ReadDefaults(const ServedModelOptions& options, ModelInfo& info) {
  if (options.read_generation_config) {
    HB_ASSIGN_OR_RETURN(info.defaults, ReadGenerationDefaults(options.directory));
  }
  if (!options.override_generation_config.empty()) {
    const std::string source = "--override-generation-config";
    HB_ASSIGN_OR_RETURN(const Json json, ParseJson(options.override_generation_config, source));
    HB_ASSIGN_OR_RETURN(info.defaults, WithGenerationDefaults(info.defaults, json, source));
  }
  HB_ASSIGN_OR_RETURN(info.chat, ReadModelDefaults(options.directory));
  spdlog::info("chat wording: {}", info.chat.wording.efforts.Describe());
  info.chat.thinking = options.thinking.value_or(info.chat.thinking);
  info.chat.reasoning_effort = options.reasoning_effort.value_or(info.chat.reasoning_effort);
  return {};
}

// The template that a checkpoint of other makers brings for its chats.
std::optional<std::string> ChatTemplate(const fs::path& directory) {
  if (const auto text = ReadTextFile(directory / "chat_template.jinja", kMaxTemplate)) return *text;
  const auto text = ReadTextFile(directory / "tokenizer_config.json", kMaxTemplate);
  const auto json = text ? ParseJson(*text, "tokenizer_config.json") : Result<Json>(Json());
  if (!json || !json->is_object() || !json->contains("chat_template")) return std::nullopt;
  const Json& found = (*json)["chat_template"];
  return found.is_string() ? std::optional(found.get<std::string>()) : std::nullopt;
}

Status LoadText(const ServedModelOptions& options, const ProgressListener& listener,
                ServedModel& served) {
  listener({.label = "read tokenizer", .total = 1});
  HB_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(options.directory / "tokenizer.json"));
  served.tokenizer = std::make_unique<Tokenizer>(std::move(tokenizer));
  served.info.tokenizer = served.tokenizer.get();
  served.info.chat_template = ChatTemplate(options.directory);
  HB_RETURN_IF_ERROR(ReadDefaults(options, served.info));
  served.pool = std::make_unique<ThreadPool>(options.threads);
  HB_ASSIGN_OR_RETURN(served.info.system_fingerprint, SystemFingerprint(options));
  return {};
}

// `files`: where the weights lie.
Status LoadModel(const ServedModelOptions& options, const ProgressListener& listener,
                 ServedModel& served, ModelFiles& files) {
  listener({.label = "load weights", .total = 1});
  HB_ASSIGN_OR_RETURN(ModelCheckpoint checkpoint, ModelCheckpoint::Open(options.directory));
  files = ModelFiles(FilesOf(checkpoint));
  HB_ASSIGN_OR_RETURN(served.info.precision, PrecisionOf(checkpoint));
  HB_ASSIGN_OR_RETURN(const ModelExecutorOptions executor, PlanMemory(options, checkpoint));
  TransformerOptions transformer = options.transformer;
  transformer.on_load = listener;
  served.info.kv_cache_dtype = transformer.math == MathMode::kFp32 ? "fp32" : "fp8";
  HB_ASSIGN_OR_RETURN(served.transformer,
                      Transformer::Load(std::move(checkpoint), transformer, Context(*served.pool)));
  for (const int64_t id : served.transformer->config().eos_token_ids) {
    served.info.eos_ids.push_back(static_cast<int32_t>(id));
  }
  HB_ASSIGN_OR_RETURN(served.executor, ModelExecutor::Create(*served.transformer, executor));
  return {};
}

Status LoadFake(const ServedModelOptions& options, ServedModel& served) {
  served.info.precision = "fake";
  served.info.kv_cache_dtype = "fake";
  HB_ASSIGN_OR_RETURN(served.executor, MakeFake(options, *served.tokenizer));
  return {};
}

}  // namespace

ModelInfo Announce(const ServedModelOptions& options) {
  ModelInfo info;
  info.served_names = options.served_names;
  if (info.served_names.empty()) info.served_names.push_back(DirectoryName(options.directory));
  info.created = std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  return info;
}

Result<ServedModel> LoadServedModel(const ServedModelOptions& options,
                                    const ProgressListener& listener) {
  ServedModel served{.info = Announce(options)};
  HB_RETURN_IF_ERROR(LoadText(options, listener, served));
  ModelFiles files;
  Status loaded =
      options.fake ? LoadFake(options, served) : LoadModel(options, listener, served, files);
  HB_RETURN_IF_ERROR(files.Check());
  HB_RETURN_IF_ERROR(std::move(loaded));
  served.executor = std::make_unique<WatchedExecutor>(std::move(served.executor), std::move(files));
  served.info.max_model_len = served.executor->limits().max_model_len;
  served.info.vocabulary = served.executor->limits().vocabulary;
  if (served.info.chat.wording.efforts.max && served.info.max_model_len < kMaxEffortTokens) {
    spdlog::warn("reasoning effort max was trained with {} tokens of context; here there are {}",
                 kMaxEffortTokens, served.info.max_model_len);
  }
  return served;
}

}  // namespace halfbyte
