#include "text/effort_texts.h"

namespace halfbyte {

std::string_view Name(ReasoningEffort effort) {
  switch (effort) {
    case ReasoningEffort::kLow:
      return "low";
    case ReasoningEffort::kHigh:
      return "high";
    case ReasoningEffort::kMax:
      return "max";
  }
  return "";
}

Result<ReasoningEffort> ParseReasoningEffort(std::string_view name) {
  for (const auto effort : {ReasoningEffort::kLow, ReasoningEffort::kHigh, ReasoningEffort::kMax}) {
    if (name == Name(effort)) return effort;
  }
  return MakeError("reasoning_effort is \"{}\"; allowed are low, high, max", name);
}

std::string_view Name(EffortProfile profile) {
  return profile == EffortProfile::kPreview ? "preview" : "official";
}

Result<std::string> EffortTexts::For(ReasoningEffort effort) const {
  if (effort == ReasoningEffort::kLow) return "";
  if (effort == ReasoningEffort::kHigh && profile == EffortProfile::kPreview) return "";
  const auto& text = effort == ReasoningEffort::kHigh ? high : max;
  if (!text) {
    return MakeError(
        "prompt_data_missing: reasoning_effort \"{}\" needs wording that the model directory does "
        "not bring; put the release's encoding/encoding_dsv4.py there, or effort_texts.{} into "
        "halfbyte.json",
        Name(effort), Name(effort));
  }
  return *text;
}

std::string EffortTexts::Describe() const {
  if (source.empty()) return fmt::format("{} profile, no file brings wording", Name(profile));
  return fmt::format("{} profile, from {} (sha256 {})", Name(profile), source, sha256);
}

}  // namespace halfbyte
