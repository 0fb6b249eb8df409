// What a reasoning effort adds to a prompt (server.md §3.1, §3.2). The wording is data of the model
// directory, never in our source.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

enum class ReasoningEffort { kLow, kHigh, kMax };

std::string_view Name(ReasoningEffort effort);  // "low", "high", "max"
// Error listing the allowed names.
Result<ReasoningEffort> ParseReasoningEffort(std::string_view name);

// The two families of released checkpoints.
enum class EffortProfile {
  kPreview,   // first releases: low and high add nothing, max a text
  kOfficial,  // 0731, 0813: low adds nothing, high and max a text each
};

std::string_view Name(EffortProfile profile);  // "preview", "official"

struct EffortTexts {
  EffortProfile profile = EffortProfile::kPreview;
  std::optional<std::string> high;  // kOfficial only
  std::optional<std::string> max;

  // The file that was asked for the texts, and the SHA-256 of its bytes; empty: there was none.
  std::string source;
  std::string sha256;

  // The text that goes verbatim before the first message; "" where the profile adds nothing.
  // Error starting with "prompt_data_missing: " if there ought to be a text and the model brings
  // none.
  Result<std::string> For(ReasoningEffort effort) const;

  // "preview profile, from DIR/encoding/encoding_dsv4.py (sha256 ...)", for logs.
  std::string Describe() const;
};

}  // namespace halfbyte
