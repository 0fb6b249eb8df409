// The engine: takes requests from any thread, runs them together on one executor, sends what comes
// out to each request's mailbox (server.md §1.1).
//
//   HB_ASSIGN_OR_RETURN(auto engine, Engine::Start(std::move(executor), &tokenizer, options));
//   const auto id = engine->Submit(std::move(request));   // or a Refusal
//   ... mailbox->Take() ...
//
// What a request gives depends on the request alone: not on who shares its batches, on prefix hits,
// preemption or chunk sizes (server.md §1.7).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/output.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "paging/executor.h"
#include "text/chat_splitter.h"
#include "text/tokenizer.h"

namespace halfbyte {

struct EngineOptions {
  SchedulerOptions scheduler;
  // Choices of one client that wait, beyond which Submit refuses; of all clients together four
  // times as many. Who has none waiting is not refused for asking for more at once.
  int64_t max_queued_requests = 256;
  std::vector<int32_t> eos_ids;  // the model's end tokens: they end a text and give none
  // Report log-probabilities after masks, biases and penalties instead of the model's own.
  bool processed_logprobs = false;
  // Draws the tokens of a step side by side; must outlive the engine. Null: one after another.
  ThreadPool* pool = nullptr;
};

enum class RefusalReason {
  kInvalid,        // a field is out of range: `field` says which
  kContextLength,  // the prompt, or prompt and max_tokens, do not fit max_model_len
  kQueueFull,      // try again after retry_after_seconds
  kDraining,       // the engine is shutting down
  kDead,           // the executor failed
};
std::string_view Name(RefusalReason reason);  // "invalid", "context_length_exceeded", ...

struct Refusal {
  RefusalReason reason = RefusalReason::kInvalid;
  std::string field;    // of Request: "prompt", "max_tokens", "logit_bias", ...; else empty
  std::string message;  // one sentence
  int64_t retry_after_seconds = 0;  // kQueueFull, kDraining: 1 .. 60
};

// One finished request, for logs and metrics.
struct RequestReport {
  RequestId id = 0;
  std::string label;
  int32_t n = 1;
  int64_t max_tokens = 0;
  std::vector<Finish> finishes;  // of each choice
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;        // of all choices
  ChatSplitter::Suppressed suppressed;  // of all choices
  int64_t preemptions = 0;
  EngineClock::time_point arrival;
  std::optional<EngineClock::time_point> scheduled;    // last entry into the batch
  std::optional<EngineClock::time_point> first_token;  // of any choice
  EngineClock::time_point finished;
};

struct StepReport {
  int64_t tokens = 0;  // computed
  int64_t drawn = 0;
  // Since each drawing sequence's previous token; none for first tokens.
  std::vector<EngineClock::duration> token_gaps;
};

// Told about what happens, on the engine's thread; must return quickly.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnStep(const StepReport&) {}
  virtual void OnFinished(const RequestReport&) {}
};

// Gauges and counters at one moment.
struct EngineStatistics {
  SchedulerCounts scheduler;
  int64_t unfinished_requests = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // of requests that were scheduled; counters since the start
  int64_t generation_tokens = 0;
  int64_t saturated_blocks = 0;  // Executor::saturated_blocks
  bool draining = false;
  bool dead = false;
  std::string death;  // what the executor said
  // When the engine thread last finished a step or found nothing to do.
  EngineClock::time_point last_progress;
};

class Engine {
 public:
  // Starts the engine's thread. `tokenizer` may be null: then only OutputFormat::kIds is accepted.
  // It and `observer` (may be null) must outlive the engine.
  // Errors: those of Scheduler::Create.
  static Result<std::unique_ptr<Engine>> Start(std::unique_ptr<Executor> executor,
                                               const Tokenizer* tokenizer,
                                               const EngineOptions& options,
                                               EngineObserver* observer = nullptr);
  // Cancels what is left (kShutdown) and waits for the thread: at most for one step.
  ~Engine();

  // All of these: from any thread, without waiting for a step.

  // Checks the requests of one call, all of one client, and queues all of them or none. Every
  // accepted request gets one Finish per choice.
  tl::expected<std::vector<RequestId>, Refusal> Submit(std::vector<Request> call);
  tl::expected<RequestId, Refusal> Submit(Request request);
  // Why Submit would refuse any request of this client now (queue full, draining, dead), for
  // whoever would rather not parse one for nothing. None: it may take one.
  std::optional<Refusal> Closed(ClientId client) const;
  // Takes effect at the next step boundary. Any time, any number of times; unknown ids are ignored.
  void Cancel(RequestId id, CancelCause cause);
  void CancelAll(CancelCause cause);
  // From now on Submit refuses; what was accepted goes on.
  void Drain();

  EngineStatistics Statistics() const;
  const ExecutorLimits& limits() const;

 private:
  class Thread;
  explicit Engine(std::unique_ptr<Thread> thread);
  std::unique_ptr<Thread> thread_;
};

}  // namespace halfbyte
