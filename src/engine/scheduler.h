// Decides what each step computes: continuous batching with chunked prefill, admission by reserved
// blocks, preemption, prefix cache (server.md §1.3 - §1.6).
//
// Clients before requests. Who waits and has fewer slots than another takes one of its youngest; a
// prompt that finds too little memory takes it from a client that would keep more; clients with
// prompts share the tokens of a step evenly. A client's oldest sequence is never taken from it for
// another client, and the oldest of all is never preempted: so all get on. Among the requests of
// one client the order is that of arrival, and nobody overtakes the first that waits.
//
// Pure: no clock, no device, no randomness. The same calls give the same plans. One thread.
//
//   scheduler.Add(request);
//   const StepPlan plan = scheduler.Next();
//   ... run it, draw tokens, decide which sequences end ...
//   scheduler.Advance(result);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/sequence_life.h"
#include "paging/executor.h"
#include "paging/kv_pages.h"
#include "paging/step_plan.h"

namespace halfbyte {

struct SchedulerOptions {
  int64_t max_sequences = 16;
  int64_t max_batch_tokens = 512;  // of one step; at least max_sequences + 128
  bool prefix_cache = true;
};

// What the scheduler must know of a request.
struct ScheduledRequest {
  RequestId id = 0;  // larger for later arrivals
  ClientId client = 0;
  std::vector<int32_t> prompt;
  int32_t n = 1;
  bool draws = true;           // false: ends with its prompt (max_tokens 0)
  bool prompt_logits = false;  // a row for every prompt token; the prefix cache is not read then
  std::string cache_salt;
};

// What became of one choice in a step.
struct DrawnToken {
  SequenceId sequence;
  std::optional<int32_t> token;  // absent: none could be drawn; the sequence is finished then
  bool finished = false;         // the sequence ends here and its memory is freed
};

// For each of the plan's drawing choices, in order.
using StepResult = std::vector<DrawnToken>;

// Counters run since the start.
struct SchedulerCounts {
  int64_t waiting = 0;  // sequences in the queue; choices that wait for their prompt are not
  int64_t running = 0;
  int64_t preemptions = 0;
  int64_t cache_queried_tokens = 0;  // of prompts at their first admission
  int64_t cache_hit_tokens = 0;
  int64_t cache_missed_snapshot_tokens = 0;  // of blocks found, but computed again: no snapshot
  KvPoolSizes pool_sizes;
  KvPoolSizes pool_used;                  // by sequences and by the cache
  int64_t context_blocks_referenced = 0;  // by sequences
};

class Scheduler {
 public:
  // Errors: limits under which no progress is certain, with the arithmetic (server.md §1.3, §1.4).
  static Result<std::unique_ptr<Scheduler>> Create(const ExecutorLimits& limits,
                                                   const SchedulerOptions& options);

  // To the tail of the queue. The request must be valid: at least one token, prompt and what may be
  // drawn within max_model_len.
  void Add(ScheduledRequest request);

  // The next step; empty if nothing can or need be done. Nothing but Advance may follow a plan that
  // is not empty.
  StepPlan Next();
  void Advance(const StepResult& result);

  // Between steps, in any state: frees what the request holds. False if it has ended (or never
  // was).
  bool Cancel(RequestId request);

  // Of a request that has not ended.
  struct RequestCounts {
    bool admitted = false;      // at least once
    int64_t cached_tokens = 0;  // of the prompt, not computed at the first admission
    int64_t preemptions = 0;
  };
  RequestCounts CountsOf(RequestId request) const;
  SchedulerCounts Counts() const;
  // Gives up what the prefix cache holds; afterwards, without requests, every pool is as at the
  // start.
  void ClearPrefixCache() { cache_.Clear(); }

 private:
  // One that has requests.
  struct Client {
    int64_t requests = 0;
    int64_t served = 0;  // tokens planned; who comes anew begins with the least that another has
    std::set<SequenceId> waiting;  // in the order of arrival
    std::set<SequenceId> running;
  };
  struct RequestEntry {
    ScheduledRequest request;
    Client* client = nullptr;
    RequestCounts counts;
    int64_t unfinished = 0;  // choices
  };
  struct Entry {
    RequestEntry* request = nullptr;
    // Prompt and output so far; empty for a choice that waits for the first one to do the prompt.
    std::vector<int32_t> tokens;
    SequenceLife life;

    int64_t left() { return std::ssize(tokens) - life.memory().sequence.position(); }
    Client& client() { return *request->client; }
  };

  Scheduler(const ExecutorLimits& limits, const SchedulerOptions& options);
  Status CheckLimits() const;

  void ShareSlots();
  void ShareBlocks();
  bool MayBeAdmitted(const Entry& entry);
  void MakeRoomToDecode();
  SequenceId VictimForABlock();
  int64_t BlocksOf(const Client& client);
  void Preempt(SequenceId id);

  void AdmitWaiting(StepPlan& plan);
  std::optional<SequenceId> NextWaiting() const;
  bool Admit(SequenceId id, StepPlan& plan);
  int64_t BlocksFor(int64_t tokens) const;
  PrefixCache::Match Find(const Entry& entry);
  Result<Sequence> Start(const PrefixCache::Match& match);
  int64_t PromptTokensLeft(const Client& client);
  void PlanDecodes(StepPlan& plan);
  void PlanPrefills(StepPlan& plan);
  void PlanChunk(SequenceId id, Entry& entry, int64_t most, StepPlan& plan);

  void AdvanceItem(const PlanItem& item, std::span<const DrawnToken> drawn);
  void CompleteBlocks(Entry& entry);
  int64_t NextSnapshot(Entry& entry, int64_t position) const;
  void ForkOrQueue(SequenceId id, Entry& from, int32_t token);
  void Wait(SequenceId id);
  void Run(SequenceId id);
  void Finish(SequenceId id);
  bool AnotherMayRun() const;

  const ExecutorLimits limits_;
  const SchedulerOptions options_;
  KvPages pages_;
  PrefixCache cache_;
  std::map<ClientId, Client> clients_;
  std::map<RequestId, RequestEntry> requests_;
  std::map<SequenceId, Entry> entries_;
  std::set<SequenceId> running_;  // in the order of arrival
  StepPlan next_;                 // what the coming step owes to the last one: saves and copies
  std::optional<StepPlan> in_flight_;
  int64_t steps_ = 0;
  SchedulerCounts counts_;  // of pools and running sequences: when asked for
};

}  // namespace halfbyte
