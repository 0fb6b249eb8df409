// halfbyte.json: what a model directory says to halfbyte beyond its own files. All fields are
// optional:
//
//   default_thinking: false              a chat starts with thinking off (else on)
//   default_reasoning_effort: "high"     low | high | max
//   effort_profile: "preview"            preview | official: what an effort adds (EffortTexts)
//   effort_texts: {"max": "..."}         the wording that goes before the first message
//   section_texts: {"tools": "...", "response_format": "..."}   what these add (section_texts.h)
//
// Without either of these the wording, and without effort_profile the profile, is what the
// checkpoint's encoder says (encoder_file.h; server.md §3.1). Unknown fields are errors.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "text/chat_wording.h"

namespace halfbyte {

struct ModelDefaults {
  bool thinking = true;
  ReasoningEffort reasoning_effort = ReasoningEffort::kHigh;
  ChatWording wording;
};

// Of `model_dir`: its halfbyte.json, its encoder; the values above where neither says anything.
Result<ModelDefaults> ReadModelDefaults(const std::filesystem::path& model_dir);
// Of a halfbyte.json alone. `source` names the text in errors.
Result<ModelDefaults> ParseModelDefaults(const Json& json, const std::string& source);

}  // namespace halfbyte
