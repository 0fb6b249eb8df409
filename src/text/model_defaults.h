// halfbyte.json: what a model directory says to halfbyte beyond its own files. All fields are
// optional:
//
//   default_thinking: false              a chat starts with thinking off (else on)
//   default_reasoning_effort: "high"     low | high | max
//   effort_profile: "preview"            preview | official: what an effort adds (EffortTexts)
//   effort_texts: {"max": "..."}         the wording that goes before the first message
//
// Wording is data, never in our source (server.md §3.1). Unknown fields are errors.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace halfbyte {

enum class ReasoningEffort { kLow, kHigh, kMax };

std::string_view Name(ReasoningEffort effort);  // "low", "high", "max"
// Error listing the allowed names.
Result<ReasoningEffort> ParseReasoningEffort(std::string_view name);

// The two families of released checkpoints (server.md §3.2).
enum class EffortProfile {
  kPreview,   // first releases: low and high add nothing, max a text
  kOfficial,  // 0731, 0813: low adds nothing, high and max a text each
};

struct EffortTexts {
  EffortProfile profile = EffortProfile::kPreview;
  std::optional<std::string> high;  // kOfficial only
  std::optional<std::string> max;

  // The text that goes verbatim before the first message; "" where the profile adds nothing.
  // Error starting with "prompt_data_missing: " if there ought to be a text and the model brings
  // none.
  Result<std::string> For(ReasoningEffort effort) const;
};

struct ModelDefaults {
  bool thinking = true;
  ReasoningEffort reasoning_effort = ReasoningEffort::kHigh;
  EffortTexts effort_texts;
};

// Of `model_dir`/halfbyte.json; the values above if there is no such file.
Result<ModelDefaults> ReadModelDefaults(const std::filesystem::path& model_dir);
// `source` names the text in errors.
Result<ModelDefaults> ParseModelDefaults(const Json& json, const std::string& source);

}  // namespace halfbyte
