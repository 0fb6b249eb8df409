// verify.h: the two faces of a Verification.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/progress.h"
#include "checkpoint/inspect.h"
#include "checkpoint/verify.h"

namespace halfbyte {
namespace {

Json UseJson(const FormatUse& use) {
  return {{"format", use.format},           {"modules", use.matrices},
          {"elements", use.elements},       {"zero", use.zero},
          {"at_max", use.at_max},           {"block_scales", use.scales},
          {"zero_blocks", use.zero_blocks}, {"max_block_scales", use.max_scales}};
}

// JSON has no infinity: an exact copy has sqnr_db null.
Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json ComparisonJson(const Comparison& comparison) {
  const ErrorStats& error = comparison.error;
  const int64_t worst = std::max<int64_t>(error.worst_index, 0);
  return {{"tensor", comparison.tensor},
          {"module", Describe(comparison.key)},
          {"format", comparison.format},
          {"reference_format", comparison.reference_format},
          {"exact", error.exact()},
          {"sqnr_db", Finite(error.sqnr_db())},
          {"relative_l2", Finite(error.relative_l2())},
          {"max_abs_error", Finite(error.max_abs_error)},
          {"clipped_blocks", comparison.clipped_blocks},
          {"worst",
           {{"row", worst / comparison.columns},
            {"column", worst % comparison.columns},
            {"value", Finite(error.worst_value)},
            {"reference", Finite(error.worst_reference)}}}};
}

double Percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string FormatsText(const std::vector<FormatUse>& formats) {
  std::string text =
      fmt::format("\n  {:<15} {:>8} {:>12} {:>8} {:>8} {:>12} {:>12}\n", "format", "modules",
                  "elements", "zero", "at max", "zero blocks", "scales at max");
  for (const FormatUse& use : formats) {
    text +=
        fmt::format("  {:<15} {:>8} {:>12} {:>6.2f} % {:>6.2f} % {:>10.3f} % {:>10.3f} %\n",
                    use.format, use.matrices, HumanQuantity(static_cast<double>(use.elements), ""),
                    Percent(use.zero, use.elements), Percent(use.at_max, use.elements),
                    Percent(use.zero_blocks, use.scales), Percent(use.max_scales, use.scales));
  }
  return text;
}

struct Family {
  int64_t modules = 0;
  int64_t exact = 0;
  ErrorStats sum;
  const Comparison* worst = nullptr;  // by SQNR
};

std::string Decibels(const ErrorStats& error) {
  return error.exact() ? "exact" : fmt::format("{:.2f} dB", error.sqnr_db());
}

std::string ComparisonsText(const std::vector<Comparison>& comparisons) {
  if (comparisons.empty()) return "";
  std::map<std::string, Family> families;
  for (const Comparison& comparison : comparisons) {
    Family& family = families[fmt::format("{} ({} against {})", FamilyName(comparison.key),
                                          comparison.format, comparison.reference_format)];
    ++family.modules;
    family.exact += comparison.error.exact();
    family.sum.Merge(comparison.error);
    if (family.worst == nullptr || comparison.error.sqnr_db() < family.worst->error.sqnr_db()) {
      family.worst = &comparison;
    }
  }
  std::string text = fmt::format("\n  {:<58} {:>8} {:>8} {:>10}  worst\n", "against the reference",
                                 "modules", "exact", "SQNR");
  for (const auto& [name, family] : families) {
    const Comparison& worst = *family.worst;
    text += fmt::format("  {:<58} {:>8} {:>8} {:>10}", name, family.modules, family.exact,
                        Decibels(family.sum));
    if (!worst.error.exact()) {
      const int64_t at = worst.error.worst_index;
      text += fmt::format("  {} in {}, at ({}, {}) {:.6g} for {:.6g}", Decibels(worst.error),
                          worst.tensor, at / worst.columns, at % worst.columns,
                          worst.error.worst_value, worst.error.worst_reference);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

Json VerificationJson(const Verification& verification) {
  Json json{{"directory", verification.directory},
            {"ok", verification.ok()},
            {"tensors", verification.tensors},
            {"bytes", verification.bytes}};
  json["formats"] = Json::array();
  for (const FormatUse& use : verification.formats) json["formats"].push_back(UseJson(use));
  json["comparisons"] = Json::array();
  for (const Comparison& comparison : verification.comparisons) {
    json["comparisons"].push_back(ComparisonJson(comparison));
  }
  json["findings"] = FindingsJson(verification.findings);
  if (!verification.tools.empty()) json["tools"] = ToolsJson(verification.tools);
  return json;
}

std::string VerificationText(const Verification& verification, size_t max_findings) {
  const auto count = [&](Severity severity) {
    return std::count_if(verification.findings.begin(), verification.findings.end(),
                         [=](const Finding& finding) { return finding.severity == severity; });
  };
  return fmt::format("{}\n{} tensors, {} read\n", verification.directory, verification.tensors,
                     HumanQuantity(static_cast<double>(verification.bytes), "B")) +
         FormatsText(verification.formats) + ComparisonsText(verification.comparisons) +
         FindingsText(verification.findings, max_findings) + ToolsText(verification.tools) +
         fmt::format("\n{}: {} errors, {} warnings, {} notes\n",
                     verification.ok() ? "sound" : "NOT SOUND", count(Severity::kError),
                     count(Severity::kWarning), count(Severity::kNote));
}

}  // namespace halfbyte
