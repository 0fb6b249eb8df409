// halfbyte calibrate MODEL_DIR --text FILE --out scales.json: see docs/calibrate.md.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/ranked_command.h"
#include "offline/calibration.h"
#include "offline/perplexity.h"

namespace halfbyte {
namespace {

struct CalibrateFlags {
  ModelFlags model;
  std::string text;
  std::string out;
  std::optional<int64_t> context;
  bool json = false;
};

void PrintTable(const ActivationMeasurement& measurement) {
  fmt::print("layer  stage    {:>12}  {:>12}  {:>9}  {:>9}  unseen experts\n", "amax", "99.9 % <",
             "clipped", "flushed");
  for (size_t l = 0; l < measurement.layers.size(); ++l) {
    const LayerMeasurement& layer = measurement.layers[l];
    const auto print = [&](const char* name, const StageMeasurement& stage, int64_t unseen) {
      const Nvfp4BlockStats& seen = stage.under_checkpoint;
      const auto count = [&](int64_t n) { return seen.blocks == 0 ? "-" : std::to_string(n); };
      fmt::print("{:5}  {:7}  {:12.6g}  {:12.6g}  {:>9}  {:>9}  {}\n", l, name, stage.amax,
                 stage.BlockAmaxPercentile(0.999), count(seen.clipped), count(seen.flushed),
                 unseen);
    };
    print("gate_up", layer.gate_up, layer.experts_without_rows());
    print("down", layer.down, layer.experts_without_rows());
  }
}

// Asked before the work, not after it. Nothing is replaced but older scales.
Status CheckTarget(const std::string& out) {
  HB_RETURN_IF_ERROR(CheckWritable(out));
  if (std::filesystem::exists(out) && !ActivationScales::Read(out)) {
    return MakeError("--out {}: is there already and holds no activation scales; name another file",
                     out);
  }
  return {};
}

Result<ExitCode> RunCalibrate(const CalibrateFlags& flags, Communicator& ranks) {
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.text));
  if (ranks.first()) HB_RETURN_IF_ERROR(CheckTarget(flags.out));
  ModelFlags model_flags = flags.model;
  const int headroom = std::exchange(model_flags.headroom, std::nullopt).value_or(kDefaultHeadroom);
  HB_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(model_flags, ranks));
  HB_ASSIGN_OR_RETURN(const int64_t context, ContextOf(opened, flags.context));
  const ModelUse use = EvaluationOf(opened, context);
  HB_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(std::move(opened), model_flags, use));
  HB_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, EncodeText(model_flags, text));
  HB_ASSIGN_OR_RETURN(const auto pieces, CutIntoContexts(tokens, context));
  Progress progress("calibrate", std::ssize(tokens), "token");
  HB_ASSIGN_OR_RETURN(const ActivationMeasurement measurement,
                      MeasureActivations(*model.transformer, pieces, headroom,
                                         [&](int64_t count) { progress.Advance(count); }));
  HB_ASSIGN_OR_RETURN(const Json json, measurement.ToJson());
  const std::vector<ScaleFinding> findings = JudgeMeasurement(measurement);
  const bool failed = std::any_of(findings.begin(), findings.end(),
                                  [](const ScaleFinding& finding) { return finding.failed; });
  const ExitCode code = failed ? ExitCode::kFailed : ExitCode::kOk;
  if (!ranks.first()) return code;
  HB_RETURN_IF_ERROR(WriteFileAtomically(flags.out, json.dump(2) + "\n"));
  if (flags.json) {
    PrintJson(json);
  } else {
    PrintTable(measurement);
    fmt::print("wrote {}\n", flags.out);
  }
  for (const ScaleFinding& finding : findings) {
    fmt::print(stderr, "halfbyte calibrate: {}{}\n",
               finding.failed ? "" : "warning: ", finding.text);
  }
  return code;
}

}  // namespace

void AddCalibrate(CLI::App& app) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure the activations of the experts and write scales for --arithmetic w4a4");
  AddDirectoryFlag(*command, flags->model);
  command->add_option("--text", flags->text, "Text file; control tokens in it are recognized")
      ->required();
  command->add_option("--out", flags->out, "File of the scales (JSON)")->required();
  command->add_option("--context", flags->context,
                      "Tokens that are evaluated together; longer texts are cut into pieces of it "
                      "(default: 1024, or the model's context if that is smaller)");
  AddHeadroomFlag(*command, flags->model);
  AddThreadsFlag(*command, flags->model);
  command->add_flag("--json", flags->json, "Print the content of the file instead of a table");
  OnRunRanked(*command, [flags](Communicator& ranks) { return RunCalibrate(*flags, ranks); });
}

}  // namespace halfbyte
