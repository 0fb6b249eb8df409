// One request for text: what the engine is asked, immutable once submitted (server.md §1.1).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paging/step_plan.h"
#include "sampling/sampler.h"

namespace halfbyte {

class Mailbox;

using EngineClock = std::chrono::steady_clock;

// Who asks. What there is, queue, slots, memory and the tokens of a step, is shared among clients
// before it is shared among the requests of one. 0: nobody in particular.
using ClientId = uint64_t;

// What ends a text before its length does.
struct StopRules {
  std::vector<std::string> strings;  // UTF-8, within StopMatcher's limits, none empty
  bool include_string = false;       // the string that ended the text stays in it
  std::vector<int32_t> token_ids;    // at most 64; end the text like the model's own end tokens
  bool ignore_eos = false;           // the model's end tokens are never drawn
};

// What visible text is made of (server.md §1.9, §3.4).
struct OutputFormat {
  enum class Kind {
    kIds,   // no text at all: stop strings are not possible
    kText,  // completions: one channel, the text
    kChat,  // reasoning and content, told apart by the model's markup
  };
  Kind kind = Kind::kText;
  bool skip_special_tokens = true;   // kText: control tokens give no text
  bool starts_in_reasoning = false;  // kChat: the prompt ends with an open <think>
};

struct Request {
  ClientId client = 0;
  std::string label;            // for logs and reports: the id that the client knows
  std::vector<int32_t> prompt;  // at least one id
  int32_t n = 1;                // choices: continuations drawn independently, at least 1
  // Choice j of this request is called first_choice + j, in events and for the random numbers: the
  // prompts of one call share one numbering.
  int32_t first_choice = 0;

  SamplingParams sampling;
  // Never drawn, in any state (server.md §3.5: in chat, the tokens that open turns).
  std::vector<int32_t> masked_ids;
  // kChat: </think>, drawn only while reasoning.
  std::optional<int32_t> reasoning_end_id;

  StopRules stop;
  // Tokens to generate, the one that ends the text included. 0 only with prompt_logprobs: the
  // prompt is scored and nothing drawn. prompt + max_tokens <= Engine max_model_len.
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;  // no end token and no stop string before; <= max_tokens

  // How many best tokens beside the drawn one are reported with log-probabilities, 0 .. 20;
  // absent: no log-probabilities.
  std::optional<int32_t> logprobs;
  // The prompt's tokens are reported too, with the same number of best ones; needs `logprobs`.
  bool prompt_logprobs = false;

  OutputFormat output;
  std::string cache_salt;  // prompts share cached prefixes only under the same salt; <= 256 bytes

  EngineClock::time_point arrival = EngineClock::now();    // before tokenising
  std::optional<EngineClock::time_point> queue_deadline;   // to have been scheduled once
  std::optional<EngineClock::time_point> finish_deadline;  // to have ended

  std::shared_ptr<Mailbox> mailbox;  // where events go (engine/mailbox.h); not null
};

}  // namespace halfbyte
