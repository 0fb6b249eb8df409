// A body of /v1/completions or /v1/chat/completions, checked and resolved: what the engine is asked
// for, and what the answer has to look like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/model_defaults.h"

namespace halfbyte {

enum class ReasoningField { kBoth, kReasoningContent, kReasoning };

// Reasoning as it was asked for and as the model does it (server.md §3.2).
struct ThinkingUsed {
  bool on = true;
  std::optional<std::string> requested;             // the client's word, if it said one
  ReasoningEffort effort = ReasoningEffort::kHigh;  // effective; without meaning when off

  std::string Header() const;  // "on; effort=high", "off": x-halfbyte-thinking
};

// What an answer needs to know about its call.
struct AnswerForm {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage; null in all others
  bool continuous_usage = false;  // every chunk says the usage so far
  bool logprobs = false;
  bool echo = false;
  bool return_token_ids = false;
  bool thinking = false;          // chat: reasoning may come
  bool include_reasoning = true;  // and is shown
  ReasoningField reasoning_field = ReasoningField::kBoth;
  int32_t n = 1;  // choices per prompt
  // By prompt: its ids, only if echo or return_token_ids ask for them.
  std::vector<std::vector<int32_t>> prompts;
};

struct GenerationCall {
  // One per prompt. Choice j of prompt p is called p * n + j. Left to the caller: label, arrival,
  // deadlines, mailbox; all of them may share one mailbox.
  std::vector<Request> requests;
  AnswerForm form;

  std::string model;                     // the name that the answer repeats
  std::vector<std::string> ignored;      // names that no API defines: x-halfbyte-ignored
  std::optional<int64_t> clamped;        // max_tokens after it was shortened: x-halfbyte-clamped
  std::optional<ThinkingUsed> thinking;  // chat only
  bool seed_drawn = false;               // the client gave none: log what was drawn
};

}  // namespace halfbyte
