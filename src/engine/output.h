// What the engine says about a request: pieces of text, log-probabilities, how it ended.
//
// Law (server.md §1.9): for each choice and channel, the pieces of all events joined are the whole
// result, byte for byte, however tokens were grouped into steps. So a caller that does not stream
// joins them and needs no other source. Each choice gets exactly one event with `finish`, its last.
// The first choice's first event comes when the request enters the batch, without any token: from
// then on no queue can refuse it (server.md §2.7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "sampling/logprobs.h"

namespace halfbyte {

enum class FinishReason { kStop, kLength, kAbort, kError };
std::string_view Name(FinishReason reason);  // "stop", "length", "abort", "error"

enum class CancelCause {
  kClient,          // asked for
  kDisconnected,    // nobody listens any more
  kSlowClient,      // the mailbox is full
  kQueueTimeout,    // queue_deadline passed
  kRequestTimeout,  // finish_deadline passed
  kShutdown,        // end of drain
};
std::string_view Name(CancelCause cause);  // "client", "disconnected", "slow_client", ...

struct Finish {
  FinishReason reason = FinishReason::kStop;
  // kStop: the stop string or the id of stop_token_ids that ended the text; neither for an end
  // token of the model.
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token;
  std::optional<CancelCause> cancelled;  // kAbort
  std::string error_code;                // kError: "nonfinite_logits", "engine_dead"
  std::string error_message;             // kError: one sentence

  bool operator==(const Finish&) const = default;
};

// Tokens so far.
struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, not computed thanks to the prefix cache
  int64_t completion_tokens = 0;  // of this choice, end and stop tokens included
  int64_t reasoning_tokens = 0;   // of these, drawn while reasoning

  bool operator==(const Usage&) const = default;
};

struct OutputEvent {
  int32_t choice = 0;  // Request::first_choice + j
  std::string content;
  std::string reasoning;           // kChat only
  std::vector<int32_t> token_ids;  // drawn since the last event, end and stop tokens included
  // Of tokens whose text is complete with this event; end tokens and markup have none.
  std::vector<LogprobEntry> content_logprobs;
  std::vector<LogprobEntry> reasoning_logprobs;
  // Of the prompt's tokens in order, in the first choice's events only. The very first token has no
  // prediction: its entry is the first of all and absent.
  std::vector<std::optional<LogprobEntry>> prompt_logprobs;
  Usage usage;
  std::optional<Finish> finish;
  EngineClock::time_point ready;  // when its tokens were drawn

  int64_t bytes() const;  // of text, ids and entries: what a mailbox counts
};

// Joins `next` to `event`, both of one choice.
void Append(OutputEvent& event, OutputEvent next);

}  // namespace halfbyte
