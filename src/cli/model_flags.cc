#include "cli/model_flags.h"

#include <algorithm>
#include <utility>

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
}

Result<std::vector<int32_t>> EncodeText(const ModelFlags& flags, const std::string& text) {
  HB_ASSIGN_OR_RETURN(const Tokenizer tokenizer,
                      Tokenizer::Load(flags.directory / "tokenizer.json"));
  return tokenizer.Encode(text, ControlTokens::kRecognized);
}

Result<int64_t> ContextOf(const Transformer& model, const std::optional<int64_t>& wanted) {
  const int64_t limit = model.config().max_position_embeddings;
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

Result<LoadedModel> LoadModel(const ModelFlags& flags, int64_t reference_tokens,
                              Communicator* communicator) {
  HB_ASSIGN_OR_RETURN(TransformerOptions options, TransformerOptionsOf(flags));
  options.reference_tokens = reference_tokens;
  options.communicator = communicator;
  LoadedModel model;
  model.pool = std::make_unique<ThreadPool>(flags.threads);
  HB_ASSIGN_OR_RETURN(model.transformer,
                      Transformer::Load(flags.directory, options, Context(*model.pool)));
  return model;
}

}  // namespace halfbyte
