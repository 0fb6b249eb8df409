#include "cli/model_flags.h"

#include <utility>

namespace halfbyte {

void AddModelFlags(CLI::App& command, ModelFlags& flags) {
  command.add_option("MODEL_DIR", flags.directory, "Directory of the model")->required();
  command
      .add_option("--math", flags.math,
                  "default: as the model is meant to run (bf16, FP8 cache); fp32: exact, for "
                  "comparison with a float32 reference")
      ->capture_default_str()
      ->check(CLI::IsMember({"default", "fp32"}));
  command
      .add_option("--arithmetic", flags.arithmetic,
                  "Of the experts. w4a16: bf16 activations; w4a4: activations in NVFP4 too; ref: "
                  "scalar with fp64 sums")
      ->capture_default_str()
      ->check(CLI::IsMember({"ref", "w4a16", "w4a4"}));
  command.add_option("--threads", flags.threads, "Processors to use")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
}

Result<LoadedModel> LoadModel(const ModelFlags& flags, int64_t reference_tokens) {
  const TransformerOptions options{
      .math = flags.math == "fp32" ? MathMode::kFp32 : MathMode::kDefault,
      .arithmetic = *ArithmeticFromName(flags.arithmetic),
      .reference_tokens = reference_tokens};
  if (options.math == MathMode::kFp32 && options.arithmetic == Arithmetic::kW4a4) {
    return MakeError(
        "--math fp32 quantizes nothing, --arithmetic w4a4 quantizes activations: choose one");
  }
  LoadedModel model;
  model.pool = std::make_unique<ThreadPool>(flags.threads);
  HB_ASSIGN_OR_RETURN(model.transformer,
                      Transformer::Load(flags.directory, options, Context(*model.pool)));
  return model;
}

}  // namespace halfbyte
