// inspect.h: the two faces of an Inspection.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/progress.h"
#include "checkpoint/inspect.h"

namespace halfbyte {
namespace {

const char* ScopeName(Scope scope) {
  return scope == Scope::kGlobal ? "global" : scope == Scope::kLayer ? "layer" : "mtp";
}

void AddRange(Json& json, const char* key, const ValueRange& range) {
  if (!range.empty()) json[key] = {{"min", range.low}, {"max", range.high}};
}

Json TotalsJson(const std::vector<Total>& totals) {
  Json json = Json::array();
  for (const Total& total : totals) {
    json.push_back({{"name", total.name}, {"tensors", total.tensors}, {"bytes", total.bytes}});
  }
  return json;
}

Json GroupJson(const ModuleGroup& group) {
  Json json{{"scope", ScopeName(group.key.scope)}};
  if (group.key.scope != Scope::kGlobal) json["index"] = group.key.layer;
  json["module"] = ModuleName(group.key.module);
  json["format"] = group.format;
  json["shape"] = group.shape;
  json["modules"] = group.modules;
  json["tensors"] = group.tensors;
  json["bytes"] = group.bytes;
  AddRange(json, "global_scale", group.global_scales);
  AddRange(json, "input_scale", group.input_scales);
  AddRange(json, "block_scale", group.block_scales);
  return json;
}

int64_t CountKind(const ModelConfig& config, AttentionKind kind) {
  return std::count_if(config.layers.begin(), config.layers.end(),
                       [kind](const LayerConfig& layer) { return layer.attention == kind; });
}

Json ConfigJson(const ModelConfig& config) {
  return {{"model_type", "deepseek_v4"},
          {"layers", config.layer_count()},
          {"window_layers", CountKind(config, AttentionKind::kWindow)},
          {"c4_layers", CountKind(config, AttentionKind::kC4)},
          {"c128_layers", CountKind(config, AttentionKind::kC128)},
          {"draft_stages", config.mtp_stages},
          {"hidden_size", config.hidden_size},
          {"vocab_size", config.vocab_size},
          {"routed_experts", config.routed_experts},
          {"experts_per_token", config.experts_per_token},
          {"expert_size", config.expert_size}};
}

// "0-42", "2,4..42" or the list.
std::string LayerList(const std::vector<int32_t>& layers) {
  if (layers.size() == 1) return std::to_string(layers[0]);
  const int32_t step = layers[1] - layers[0];
  for (size_t i = 2; i < layers.size(); ++i) {
    if (layers[i] - layers[i - 1] == step) continue;
    if (layers.size() <= 6) return fmt::format("{}", fmt::join(layers, ","));
    return fmt::format("{}..{} ({})", layers.front(), layers.back(), layers.size());
  }
  if (step == 1) return fmt::format("{}-{}", layers.front(), layers.back());
  if (layers.size() == 2) return fmt::format("{},{}", layers[0], layers[1]);
  return fmt::format("{},{}..{}", layers[0], layers[1], layers.back());
}

std::string RangeText(const char* name, const ValueRange& range) {
  if (range.empty()) return "";
  if (range.low == range.high) return fmt::format("  {} {:.4g}", name, range.low);
  return fmt::format("  {} {:.4g}..{:.4g}", name, range.low, range.high);
}

struct Line {
  ModuleGroup sum;
  std::vector<int32_t> layers;
};

// Groups of all layers that differ in the layer alone.
std::vector<Line> Lines(const Inspection& inspection) {
  std::map<std::tuple<Scope, Module, std::string, Shape, int64_t>, Line> lines;
  for (const ModuleGroup& group : inspection.groups) {
    Line& line =
        lines[{group.key.scope, group.key.module, group.format, group.shape, group.modules}];
    line.layers.push_back(group.key.layer);
    if (line.layers.size() == 1) {
      line.sum = group;
      continue;
    }
    line.sum.modules += group.modules;
    line.sum.bytes += group.bytes;
    line.sum.global_scales.Merge(group.global_scales);
    line.sum.input_scales.Merge(group.input_scales);
    line.sum.block_scales.Merge(group.block_scales);
  }
  std::vector<Line> sorted;
  for (auto& [key, line] : lines) sorted.push_back(std::move(line));
  return sorted;
}

std::string LineText(const Line& line) {
  const ModuleGroup& sum = line.sum;
  const std::string layers = sum.key.scope == Scope::kGlobal ? "" : LayerList(line.layers);
  const std::string name =
      fmt::format("{}{}", sum.key.scope == Scope::kMtp ? "mtp " : "", ModuleName(sum.key.module));
  return fmt::format("  {:<29} {:<12} {:<15} {:<20} {:>7} {:>11}{}{}{}\n", name, layers, sum.format,
                     ShapeString(sum.shape), sum.modules,
                     HumanQuantity(static_cast<double>(sum.bytes), "B"),
                     RangeText("global", sum.global_scales), RangeText("input", sum.input_scales),
                     RangeText("block", sum.block_scales));
}

std::string TotalsText(const char* title, const std::vector<Total>& totals, int64_t all) {
  std::string text = fmt::format("\n{}\n", title);
  for (const Total& total : totals) {
    text += fmt::format(
        "  {:<24} {:>8} tensors {:>11} {:>6.2f} %\n", total.name, total.tensors,
        HumanQuantity(static_cast<double>(total.bytes), "B"),
        all == 0 ? 0.0 : 100.0 * static_cast<double>(total.bytes) / static_cast<double>(all));
  }
  return text;
}

std::string ConfigText(const ModelConfig& c) {
  return fmt::format(
      "deepseek_v4: {} layers ({} window, {} C4, {} C128), hidden {}, {} experts of {} (top {}) "
      "and {} shared, vocabulary {}\n",
      c.layer_count(), CountKind(c, AttentionKind::kWindow), CountKind(c, AttentionKind::kC4),
      CountKind(c, AttentionKind::kC128), c.hidden_size, c.routed_experts, c.expert_size,
      c.experts_per_token, c.shared_experts, c.vocab_size);
}

}  // namespace

Json FindingsJson(const Findings& findings) {
  Json json = Json::array();
  for (const Finding& finding : findings) {
    json.push_back({{"severity", SeverityName(finding.severity)},
                    {"tensor", finding.where},
                    {"message", finding.message}});
  }
  return json;
}

std::string FindingsText(const Findings& findings, size_t limit) {
  if (findings.empty()) return "\nno findings\n";
  Findings sorted = findings;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  std::string text = "\nfindings\n";
  for (size_t i = 0; i < std::min(limit, sorted.size()); ++i) {
    text += fmt::format("  {}: {}: {}\n", SeverityName(sorted[i].severity), sorted[i].where,
                        sorted[i].message);
  }
  if (sorted.size() > limit) {
    text += fmt::format("  and {} more; --json lists all\n", sorted.size() - limit);
  }
  return text;
}

Json InspectionJson(const Inspection& inspection) {
  Json json{{"directory", inspection.directory},
            {"naming", inspection.naming},
            {"files", inspection.files},
            {"tensors", inspection.tensors},
            {"bytes", inspection.bytes}};
  json["config"] = inspection.config ? ConfigJson(*inspection.config) : Json(nullptr);
  json["by_format"] = TotalsJson(inspection.by_format);
  json["by_family"] = TotalsJson(inspection.by_family);
  json["modules"] = Json::array();
  for (const ModuleGroup& group : inspection.groups) json["modules"].push_back(GroupJson(group));
  json["findings"] = FindingsJson(inspection.findings);
  return json;
}

std::string InspectionText(const Inspection& inspection, size_t max_findings) {
  std::string text = fmt::format("{}\n", inspection.directory);
  if (inspection.config) text += ConfigText(*inspection.config);
  text += fmt::format("{} tensors in {} files, {} bytes ({}), {} names\n\n", inspection.tensors,
                      inspection.files, inspection.bytes,
                      HumanQuantity(static_cast<double>(inspection.bytes), "B"), inspection.naming);
  text += fmt::format("  {:<29} {:<12} {:<15} {:<20} {:>7} {:>11}\n", "module", "layers", "format",
                      "shape", "count", "size");
  for (const Line& line : Lines(inspection)) text += LineText(line);
  text += TotalsText("by format", inspection.by_format, inspection.bytes);
  text += TotalsText("by family", inspection.by_family, inspection.bytes);
  return text + FindingsText(inspection.findings, max_findings);
}

}  // namespace halfbyte
