#include "cli/model_flags.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "model/checkpoint_weights.h"
#include "model/model_memory.h"
#include "text/tokenizer.h"

namespace halfbyte {

namespace {

Result<ActivationScalePolicy> PolicyOf(const ModelFlags& flags) {
  using Source = ActivationScalePolicy::Source;
  ActivationScalePolicy policy{.headroom = flags.headroom.value_or(kDefaultHeadroom)};
  if (flags.activation_scales.empty()) return policy;
  if (flags.activation_scales == "checkpoint") {
    policy.source = Source::kCheckpoint;
  } else if (flags.activation_scales == "per-token") {
    policy.source = Source::kPerToken;
  } else {
    policy.source = Source::kMeasured;
    HB_ASSIGN_OR_RETURN(auto measured, ActivationScales::Read(flags.activation_scales));
    policy.measured = std::make_shared<const ActivationScales>(std::move(measured));
  }
  return policy;
}

const char* MoreMemory(const TransformerOptions& options) {
  return options.gpu ? "run it on the CPU (--device cpu)"
                     : "fewer --threads take a little less, ranks on several machines a part each "
                       "(docs/ranks.md)";
}

// The GPU of --device; nothing: the CPU, or not known yet.
Result<std::optional<int>> GpuOf(const std::string& device) {
  if (device == "cpu" || device == "auto") return std::nullopt;
  if (device == "cuda") return 0;
  int gpu = 0;
  const std::string_view number =
      std::string_view(device).substr(std::min<size_t>(5, device.size()));
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), gpu);
  if (!device.starts_with("cuda:") || error != std::errc() ||
      end != number.data() + number.size() || gpu < 0) {
    return MakeError("--device {}: it is auto, cpu, cuda, or cuda:N for GPU N", device);
  }
  return gpu;
}

KvPoolSizes PoolsFor(const OpenedModel& model, int64_t tokens) {
  return KvCacheLimits{.context_tokens = tokens, .batch_tokens = model.options.batch_tokens}.Pools(
      model.checkpoint.config().sliding_window);
}

}  // namespace

void AddDirectoryFlag(CLI::App& command, ModelFlags& flags) {
  command.add_option("MODEL_DIR", flags.directory, "Directory of the model")->required();
}

void AddThreadsFlag(CLI::App& command, ModelFlags& flags) {
  command.add_option("--threads", flags.threads, "Processors to use")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
}

void AddHeadroomFlag(CLI::App& command, ModelFlags& flags) {
  command
      .add_option("--headroom", flags.headroom,
                  "Powers of two on top of a static activation scale (default: 5)")
      ->check(CLI::Range(0, 6));
}

void AddModelFlags(CLI::App& command, ModelFlags& flags) {
  AddDirectoryFlag(command, flags);
  command
      .add_option("--math", flags.math,
                  "default: as the model is meant to run (bf16, FP8 cache); fp32: exact, for "
                  "comparison with a float32 reference")
      ->capture_default_str()
      ->check(CLI::IsMember({"default", "fp32"}));
  command
      .add_option("--arithmetic", flags.arithmetic,
                  "Of the experts. w4a16: bf16 activations; w4a4: activations in NVFP4 too; w4a8: "
                  "activations in int8; ref: scalar with fp64 sums")
      ->capture_default_str()
      ->check(CLI::IsMember({"ref", "w4a16", "w4a4", "w4a8"}));
  command.add_option(
      "--activation-scales", flags.activation_scales,
      "For w4a4. checkpoint: its input_scale; per-token: each row's own; a FILE that "
      "halfbyte calibrate wrote (default: checkpoint if every expert has one, else "
      "per-token)");
  AddHeadroomFlag(command, flags);
  AddThreadsFlag(command, flags);
  command
      .add_option(
          "--device", flags.device,
          "What computes the model: cpu, cuda, cuda:N for GPU N, or auto: a GPU if there is "
          "one that the model fits, else the CPU")
      ->capture_default_str();
  command
      .add_option("--gpu-memory-utilization", flags.gpu_memory,
                  "Part of a GPU's memory that the model and its KV cache may take")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 1.0));
}

Result<std::vector<int32_t>> EncodeText(const ModelFlags& flags, const std::string& text) {
  HB_ASSIGN_OR_RETURN(const Tokenizer tokenizer,
                      Tokenizer::Load(flags.directory / "tokenizer.json"));
  return tokenizer.EncodePrompt(text, /*add_special_tokens=*/true);
}

Result<int64_t> ContextOf(const OpenedModel& model, const std::optional<int64_t>& wanted) {
  const int64_t limit = model.checkpoint.config().max_position_embeddings;
  const int64_t context = wanted.value_or(std::min(kDefaultContext, limit));
  if (context > limit) {
    return MakeError("--context {} exceeds the model's context of {}", context, limit);
  }
  return context;
}

Result<TransformerOptions> TransformerOptionsOf(const ModelFlags& flags) {
  HB_ASSIGN_OR_RETURN(ActivationScalePolicy activation_scales, PolicyOf(flags));
  TransformerOptions options{.math = flags.math == "fp32" ? MathMode::kFp32 : MathMode::kDefault,
                             .arithmetic = *ArithmeticFromName(flags.arithmetic),
                             .activation_scales = std::move(activation_scales)};
  HB_ASSIGN_OR_RETURN(options.gpu, GpuOf(flags.device));
  options.gpu_memory = flags.gpu_memory;
  if (options.math == MathMode::kFp32 && IsFourBitOnly(options.arithmetic)) {
    return MakeError(
        "--math fp32 quantizes nothing, --arithmetic {} quantizes activations: choose one",
        flags.arithmetic);
  }
  if (options.arithmetic != Arithmetic::kW4a4 &&
      (!flags.activation_scales.empty() || flags.headroom)) {
    return MakeError(
        "--activation-scales and --headroom are for --arithmetic w4a4; {} has no such scales",
        flags.arithmetic);
  }
  return options;
}

std::string ChooseDevice(const ModelCheckpoint& checkpoint, TransformerOptions& options) {
  TransformerOptions on_gpu = options;
  on_gpu.gpu = 0;
  const Status fits = [&]() -> Status {
    HB_ASSIGN_OR_RETURN(const MemoryPlan plan,
                        PlanModel(CheckpointWeights(checkpoint), on_gpu, /*threads=*/1));
    HB_ASSIGN_OR_RETURN(const AvailableMemory available, AvailableTo(on_gpu));
    return plan.Check(available, "the model", "give it to a larger GPU");
  }();
  if (!fits) {
    return fmt::format("--device auto: the CPU; a GPU is not used: {}", fits.error().message);
  }
  options.gpu = on_gpu.gpu;
  return fmt::format("--device auto: GPU {}", *options.gpu);
}

Result<OpenedModel> OpenModel(const ModelFlags& flags, Communicator& ranks,
                              int64_t reference_tokens) {
  HB_ASSIGN_OR_RETURN(TransformerOptions options, TransformerOptionsOf(flags));
  options.reference_tokens = reference_tokens;
  options.communicator = &ranks;
  HB_ASSIGN_OR_RETURN(ModelCheckpoint checkpoint, ModelCheckpoint::Open(flags.directory));
  if (flags.device == "auto") fmt::print(stderr, "{}\n", ChooseDevice(checkpoint, options));
  HB_ASSIGN_OR_RETURN(const int here, RanksOnThisMachine(ranks));
  HB_ASSIGN_OR_RETURN(AvailableMemory available, AvailableTo(options));
  if (!options.gpu) available = available.ForEachOf(here);
  HB_RETURN_IF_ERROR(ranks.Barrier());  // all have looked before one takes memory
  return OpenedModel{std::move(checkpoint), std::move(options), available};
}

ModelUse EvaluationOf(const OpenedModel& model, int64_t context) {
  return {.context_tokens = context,
          .logit_rows = std::min(context, model.options.batch_tokens),
          .context_flag = "--context"};
}

Result<int64_t> AffordableContext(const OpenedModel& model, const ModelFlags& flags,
                                  int64_t wanted) {
  const ModelConfig& config = model.checkpoint.config();
  HB_ASSIGN_OR_RETURN(const MemoryPlan plan,
                      PlanModel(CheckpointWeights(model.checkpoint), model.options, flags.threads));
  HB_ASSIGN_OR_RETURN(const KvLayout units, KvLayout::Create(config, model.options.math));
  const auto fits = [&](int64_t tokens) {
    MemoryPlan with_cache = plan;
    with_cache.Add("KV cache", units.BytesOf(PoolsFor(model, tokens)));
    return with_cache.Check(model.available, "", "").has_value();
  };
  int64_t affordable = 0, beyond = wanted + 1;
  while (affordable + 1 < beyond) {
    const int64_t middle = affordable + (beyond - affordable) / 2;
    (fits(middle) ? affordable : beyond) = middle;
  }
  return affordable;
}

Result<LoadedModel> LoadModel(OpenedModel opened, const ModelFlags& flags, const ModelUse& use) {
  const ModelConfig& config = opened.checkpoint.config();
  opened.options.logit_rows = use.logit_rows;
  HB_ASSIGN_OR_RETURN(MemoryPlan plan, PlanModel(CheckpointWeights(opened.checkpoint),
                                                 opened.options, flags.threads));
  const std::string subject = flags.directory.string();
  HB_RETURN_IF_ERROR(plan.Check(opened.available, subject, MoreMemory(opened.options)));
  HB_ASSIGN_OR_RETURN(const KvLayout units, KvLayout::Create(config, opened.options.math));
  plan.Add(fmt::format("KV cache of {} tokens", use.context_tokens),
           units.BytesOf(PoolsFor(opened, use.context_tokens)));
  HB_RETURN_IF_ERROR(
      plan.Check(opened.available, subject, fmt::format("give a smaller {}", use.context_flag)));
  LoadedModel model;
  model.pool = std::make_unique<ThreadPool>(flags.threads);
  HB_ASSIGN_OR_RETURN(model.transformer, Transformer::Load(std::move(opened.checkpoint),
                                                           opened.options, Context(*model.pool)));
  return model;
}

}  // namespace halfbyte
