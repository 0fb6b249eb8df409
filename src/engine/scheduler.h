// Decides what each step computes: continuous batching with chunked prefill, admission by reserved
// blocks, preemption, prefix cache (server.md §1.3 - §1.6).
//
// Pure: no clock, no device, no randomness. The same calls give the same plans. One thread.
//
//   scheduler.Add(request);
//   const StepPlan plan = scheduler.Next();
//   ... run it, draw tokens, decide which sequences end ...
//   scheduler.Advance(result);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/executor.h"
#include "engine/step_plan.h"

namespace halfbyte {

struct SchedulerOptions {
  int64_t max_sequences = 16;
  int64_t max_batch_tokens = 512;  // of one step; at least max_sequences + 128
  bool prefix_cache = true;
  std::string cache_seed;  // what cached rows depend on: model, formats
};

// What the scheduler must know of a request.
struct ScheduledRequest {
  RequestId id = 0;  // larger for later arrivals
  std::vector<int32_t> prompt;
  int32_t n = 1;
  bool draws = true;           // false: ends with its prompt (max_tokens 0)
  bool prompt_logits = false;  // a row for every prompt token; the prefix cache is not read then
  std::string cache_salt;
};

// What became of one choice in a step.
struct DrawnToken {
  SequenceId sequence;
  std::optional<int32_t> token;  // absent: nothing could be drawn, or nothing was wanted
  bool finished = false;         // the sequence ends here and its memory is freed
};

struct StepResult {
  std::vector<DrawnToken> drawn;  // for each of the plan's drawing choices, in order
};

struct SchedulerCounts {
  int64_t waiting = 0;  // sequences by state
  int64_t running = 0;
  int64_t preemptions = 0;  // since the start, as all below
  int64_t cache_queried_tokens = 0;
  int64_t cache_hit_tokens = 0;
  int64_t cache_missed_snapshot_tokens = 0;  // blocks found, but no snapshot to continue from
  KvPoolSizes pool_sizes;
  KvPoolSizes pool_used;                  // by sequences and by the cache
  int64_t context_blocks_referenced = 0;  // by sequences
};

class Scheduler {
 public:
  // Errors: limits under which no progress is certain, with the arithmetic (server.md §1.3, §1.4).
  static Result<std::unique_ptr<Scheduler>> Create(const ExecutorLimits& limits,
                                                   const SchedulerOptions& options);
  ~Scheduler();

  // To the tail of the queue. The request must be valid: ids in the vocabulary, prompt and what may
  // be drawn within max_model_len.
  void Add(ScheduledRequest request);

  // The next step; empty if nothing can or need be done. Nothing but Advance may follow a plan that
  // is not empty.
  StepPlan Next();
  void Advance(const StepResult& result);

  // Between steps, in any state: frees what the request holds. False if it has ended (or never
  // was).
  bool Cancel(RequestId request);

  // Tokens of the prompt that the first admission found in the cache; absent while waiting.
  std::optional<int64_t> CachedTokens(RequestId request) const;
  int64_t Preemptions(RequestId request) const;
  SchedulerCounts Counts() const;
  // Gives up what the prefix cache holds; afterwards, without requests, every pool is as at the
  // start.
  void ClearPrefixCache();

 private:
  class State;
  explicit Scheduler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace halfbyte
