#include "moe/activation_scales.h"

#include <cmath>
#include <optional>
#include <span>

#include "base/check.h"

namespace halfbyte {
namespace {

constexpr int kVersion = 1;
constexpr std::string_view kPlacement = "before_down";
// Shares of the blocks whose amax the file tells an upper bound of.
constexpr std::pair<const char*, double> kPercentiles[] = {
    {"50", 0.5}, {"99", 0.99}, {"99.9", 0.999}, {"99.99", 0.9999}};

std::string LayerName(size_t layer) { return "layer " + std::to_string(layer); }

Json CheckpointJson(const GlobalScale& scale, int headroom, const Nvfp4BlockStats& seen) {
  return {{"input_scale", std::ldexp(scale.value(), -headroom)},
          {"headroom", headroom},
          {"clipped", seen.clipped},
          {"at_max", seen.at_max},
          {"flushed", seen.flushed}};
}

Result<Json> StageJson(const StageMeasurement& stage, const std::optional<GlobalScale>& checkpoint,
                       int headroom, const std::string& name) {
  HB_ASSIGN_OR_RETURN(const GlobalScale scale, stage.Scale(name));
  if (scale.value() > kLargestInputScale) {
    return MakeError("{}: amax {} is beyond what a scale of at most {} is for", name, stage.amax,
                     kLargestInputScale);
  }
  Json percentiles = Json::object(), binades = Json::object();
  for (const auto& [key, share] : kPercentiles) percentiles[key] = stage.BlockAmaxPercentile(share);
  for (size_t b = 0; b < stage.binades.size(); ++b) {
    if (stage.binades[b] != 0)
      binades[std::to_string(static_cast<int>(b) - 127)] = stage.binades[b];
  }
  return Json{
      {"scale", scale.value()},
      {"amax", stage.amax},
      {"rows", stage.rows},
      {"blocks", stage.blocks},
      {"block_amax_below", std::move(percentiles)},
      {"blocks_by_log2_amax", std::move(binades)},
      {"checkpoint",
       checkpoint ? CheckpointJson(*checkpoint, headroom, stage.under_checkpoint) : Json()}};
}

std::optional<ScaleFinding> JudgeStage(const std::string& name, const Nvfp4BlockStats& seen) {
  if (seen.blocks == 0) return std::nullopt;
  const double share = static_cast<double>(seen.clipped) / static_cast<double>(seen.blocks);
  if (share <= kClippedWarning) return std::nullopt;
  return ScaleFinding{share > kClippedFailure,
                      fmt::format("{}: {:.2f} % of the blocks clip under the checkpoint's input "
                                  "scale; run with the measured ones (--activation-scales)",
                                  name, 100 * share)};
}

Result<GlobalScale> ReadScale(const JsonObject& layer, std::string_view stage) {
  HB_ASSIGN_OR_RETURN(const auto object, layer.Object(stage));
  if (!object) return MakeError("{}: missing", layer.Describe(stage));
  HB_ASSIGN_OR_RETURN(const auto value, object->Number("scale"));
  if (!value) return MakeError("{}: missing", object->Describe("scale"));
  const bool in_range = *value > 0 && *value <= kLargestInputScale;
  const GlobalScale scale(in_range ? static_cast<float>(*value) : 0.0f);
  if (!scale.IsUsable()) {
    return MakeError("{}: {} is no scale amax / 2688: it must be positive and at most {}",
                     object->Describe("scale"), *value, kLargestInputScale);
  }
  return scale;
}

Result<StageScales> WithHeadroom(const std::string& name, const std::vector<float>& gate_up,
                                 const std::vector<float>& down, int headroom) {
  StageScales scales;
  HB_ASSIGN_OR_RETURN(scales.gate_up, StaticActivationScale(gate_up, name + ", gate_up", headroom));
  HB_ASSIGN_OR_RETURN(scales.down, StaticActivationScale(down, name + ", down", headroom));
  return scales;
}

Result<int64_t> ReadInt(const JsonObject& object, std::string_view key) {
  HB_ASSIGN_OR_RETURN(const auto value, object.Int(key));
  if (!value) return MakeError("{}: missing", object.Describe(key));
  return *value;
}

}  // namespace

Result<ActivationScales> ActivationScales::Read(const std::filesystem::path& path) {
  HB_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  HB_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(json, path.string()));
  HB_ASSIGN_OR_RETURN(const auto version, root.Int("activation_scales"));
  if (version != kVersion) {
    return MakeError(
        "{}: not a file of activation scales (version {}) as halfbyte calibrate "
        "writes it",
        path.string(), kVersion);
  }
  HB_ASSIGN_OR_RETURN(const auto placement, root.String("routing_weight"));
  if (placement != kPlacement) {
    return MakeError("{}: {} is needed, scales of `down` do not hold otherwise",
                     root.Describe("routing_weight"), kPlacement);
  }
  ActivationScales scales{.path = path};
  HB_ASSIGN_OR_RETURN(const auto model, root.Object("model"));
  if (!model) return MakeError("{}: missing", root.Describe("model"));
  HB_ASSIGN_OR_RETURN(scales.shape.layers, ReadInt(*model, "layers"));
  HB_ASSIGN_OR_RETURN(scales.shape.experts, ReadInt(*model, "experts"));
  HB_ASSIGN_OR_RETURN(scales.shape.hidden, ReadInt(*model, "hidden"));
  HB_ASSIGN_OR_RETURN(scales.shape.intermediate, ReadInt(*model, "intermediate"));
  HB_ASSIGN_OR_RETURN(const auto layers, root.Array("layers"));
  if (!layers || std::ssize(**layers) != scales.shape.layers) {
    return MakeError("{}: one entry for each of the {} layers is needed", root.Describe("layers"),
                     scales.shape.layers);
  }
  for (size_t l = 0; l < (*layers)->size(); ++l) {
    HB_ASSIGN_OR_RETURN(const JsonObject layer,
                        JsonObject::Of((**layers)[l], path.string(), fmt::format("layers[{}]", l)));
    Layer read;
    HB_ASSIGN_OR_RETURN(read.gate_up, ReadScale(layer, "gate_up"));
    HB_ASSIGN_OR_RETURN(read.down, ReadScale(layer, "down"));
    scales.layers.push_back(read);
  }
  return scales;
}

Result<Json> ActivationMeasurement::ToJson() const {
  Json entries = Json::array();
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerMeasurement& layer = layers[l];
    if (layer.rows_beyond_clamp > 0) {
      return MakeError(
          "{}, down: {} rows exceed limit^2 * routing weight (amax {}); the clamp of "
          "the activation is missing",
          LayerName(l), layer.rows_beyond_clamp, layer.down.amax);
    }
    HB_ASSIGN_OR_RETURN(Json gate_up, StageJson(layer.gate_up, checkpoint[l].gate_up, headroom,
                                                LayerName(l) + ", gate_up"));
    HB_ASSIGN_OR_RETURN(
        Json down, StageJson(layer.down, checkpoint[l].down, headroom, LayerName(l) + ", down"));
    Json unseen = Json::array();
    for (size_t e = 0; e < layer.rows_of_expert.size(); ++e) {
      if (layer.rows_of_expert[e] == 0) unseen.push_back(e);
    }
    entries.push_back({{"layer", l},
                       {"gate_up", std::move(gate_up)},
                       {"down", std::move(down)},
                       {"experts_without_tokens", std::move(unseen)}});
  }
  return Json{{"activation_scales", kVersion},
              {"routing_weight", kPlacement},
              {"model",
               {{"layers", shape.layers},
                {"experts", shape.experts},
                {"hidden", shape.hidden},
                {"intermediate", shape.intermediate}}},
              {"tokens", tokens},
              {"context", context},
              {"layers", std::move(entries)}};
}

std::vector<ScaleFinding> JudgeMeasurement(const ActivationMeasurement& measurement) {
  std::vector<ScaleFinding> findings;
  int64_t unseen = 0;
  for (size_t l = 0; l < measurement.layers.size(); ++l) {
    const LayerMeasurement& layer = measurement.layers[l];
    for (const auto& [stage, name] :
         {std::pair{&layer.gate_up, ", gate_up"}, std::pair{&layer.down, ", down"}}) {
      const auto finding = JudgeStage(LayerName(l) + name, stage->under_checkpoint);
      if (finding) findings.push_back(*finding);
    }
    unseen += layer.experts_without_rows();
  }
  if (unseen > 0) {
    findings.push_back({false, fmt::format("{} experts saw no token; they share the scales that "
                                           "the others of their layer need",
                                           unseen)});
  }
  return findings;
}

Result<StageScales> ActivationScalePolicy::Resolve(int64_t layer, const MoeModelShape& shape,
                                                   const ExpertInputScales& checkpoint) const {
  const std::string name = LayerName(static_cast<size_t>(layer));
  if (source != Source::kMeasured) return ResolveUnmeasured(name, checkpoint);
  HB_CHECK(measured != nullptr, "no measured scales");
  if (measured->shape != shape) {
    return MakeError(
        "{}: scales of another model: {} layers of {} experts [{}, {}], not {} of "
        "{} [{}, {}]",
        measured->path.string(), measured->shape.layers, measured->shape.experts,
        measured->shape.hidden, measured->shape.intermediate, shape.layers, shape.experts,
        shape.hidden, shape.intermediate);
  }
  const ActivationScales::Layer& own = measured->layers[static_cast<size_t>(layer)];
  return WithHeadroom(name, {own.gate_up.value()}, {own.down.value()}, headroom);
}

Result<StageScales> ActivationScalePolicy::ResolveUnmeasured(
    std::string_view name, const ExpertInputScales& weights) const {
  switch (source) {
    case Source::kPerToken:
      return StageScales{};
    case Source::kCheckpointIfComplete:
      if (!weights.missing.empty()) return StageScales{};
      break;
    case Source::kCheckpoint:
      if (weights.missing.empty()) break;
      return MakeError(
          "{}, {}: no input_scale; measure scales with halfbyte calibrate and use its file, or "
          "take a scale per token",
          name, weights.missing);
    case Source::kMeasured:
      return MakeError("{}: a file of activation scales is for the layers of a checkpoint", name);
  }
  return WithHeadroom(std::string(name), weights.gate_up, weights.down, headroom);
}

}  // namespace halfbyte
