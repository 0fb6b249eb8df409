// Thinking and effort in their many spellings (server.md §3.2).
#pragma once

#include <string>

#include "openai/api_error.h"
#include "openai/generation_call.h"
#include "openai/json_body.h"
#include "text/model_defaults.h"

namespace halfbyte {

struct ThinkingAsked {
  bool on = true;
  ReasoningEffort effort = ReasoningEffort::kHigh;
  std::string effort_path;  // the field that said it; empty: the model's default
  ThinkingUsed used;
};

// Of a checked chat body. Error: two spellings contradict each other; it names the later one, in
// the order in which field_table.cc lists them. An effort other than none asks for thinking.
ApiResult<ThinkingAsked> ReadThinking(const BodyFields& body, const ModelDefaults& defaults);

}  // namespace halfbyte
