// One choice of an answer as JSON text: whole, or as the chunks of a stream (server.md §2.5 to
// §2.7).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/output.h"
#include "openai/generation_call.h"
#include "text/tokenizer.h"

namespace halfbyte {

// What a choice shows beside its events.
struct ChoiceContext {
  const Tokenizer& tokenizer;
  const AnswerForm& form;
  std::span<const int32_t> prompt;  // its ids, if the form has prompts
  std::span<const std::optional<LogprobEntry>> prompt_logprobs;
};

// The choices of the chunks that tell `event`, in order; none if it has nothing to tell yet.
// `first`: of this choice nothing was told before. Whole answers are one event and one chunk in
// the shape of the body.
std::vector<std::string> CompletionChoices(const ChoiceContext& context, const OutputEvent& event,
                                           bool first);
std::vector<std::string> ChatDeltas(const ChoiceContext& context, const OutputEvent& event,
                                    bool first);
// The choice of a body from all its events joined.
std::string ChatChoice(const ChoiceContext& context, const OutputEvent& whole);

}  // namespace halfbyte
