// The engine without its thread: one call of Step plans, executes, draws tokens, produces output
// and advances (server.md §1.1). Engine (engine.h) runs it; tests run it step by step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/choice_output.h"
#include "engine/choice_sampler.h"
#include "engine/engine.h"
#include "engine/mailbox.h"
#include "engine/scheduler.h"
#include "paging/executor.h"

namespace halfbyte {

class EngineLoop {
 public:
  // Errors: those of Scheduler::Create. `tokenizer` and `observer` may be null.
  static Result<std::unique_ptr<EngineLoop>> Create(std::unique_ptr<Executor> executor,
                                                    const Tokenizer* tokenizer,
                                                    const EngineOptions& options,
                                                    EngineObserver* observer);

  // A request that Check accepts; ids ascend.
  void Add(RequestId id, Request request);
  void Cancel(RequestId id, CancelCause cause);
  void CancelAll(CancelCause cause);

  // One step, deadlines first. False if no request is left. Error: the executor failed, now or
  // before; all requests have ended with that.
  Result<bool> Step();
  // All requests end with this error, and every Step from now on.
  tl::unexpected<Error> Die(Error error);

  // Of requests that have not ended.
  int64_t unfinished() const { return std::ssize(live_); }
  // Of them, choices of those that have not entered the batch so far, by client.
  std::map<ClientId, int64_t> unadmitted() const;

  const ExecutorLimits& limits() const { return executor_->limits(); }
  SchedulerCounts counts() const { return scheduler_->Counts(); }
  Scheduler& scheduler() { return *scheduler_; }
  int64_t steps() const { return steps_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t generation_tokens() const { return generation_tokens_; }
  int64_t saturated_blocks() const { return executor_->saturated_blocks(); }
  double mean_service_seconds() const { return mean_service_seconds_; }

 private:
  struct Choice {
    Choice(const Request& request, int32_t number, const Tokenizer* tokenizer,
           const EngineOptions& options, int64_t first_offset)
        : sampler(request, number, options.eos_ids, options.processed_logprobs),
          output(request, tokenizer, options.eos_ids, first_offset) {}
    ChoiceSampler sampler;
    ChoiceOutput output;
    std::optional<EngineClock::time_point> last_token;
  };
  struct Live {
    Request request;
    std::vector<std::unique_ptr<Choice>> choices;
    int64_t unfinished = 0;
    RequestReport report;
    int64_t prompt_entries = 0;  // prompt log-probabilities told so far
    std::vector<int64_t> prompt_offsets;
    bool slow_client = false;
  };

  EngineLoop(std::unique_ptr<Executor> executor, std::unique_ptr<Scheduler> scheduler,
             const Tokenizer* tokenizer, const EngineOptions& options, EngineObserver* observer)
      : executor_(std::move(executor)),
        scheduler_(std::move(scheduler)),
        tokenizer_(tokenizer),
        options_(options),
        observer_(observer) {}

  tl::unexpected<Error> FailAll(EngineClock::time_point now);
  void CancelExpired(EngineClock::time_point now);
  void NoteScheduled(const StepPlan& plan, EngineClock::time_point now);
  std::vector<Result<ChoiceSampler::Draw>> DrawAll(const StepPlan& plan,
                                                   MatrixView<const float> logits);
  void HandleItem(const PlanItem& item, MatrixView<const float> rows,
                  std::span<const Result<ChoiceSampler::Draw>> draws, EngineClock::time_point now,
                  StepResult& result, StepReport& report);
  std::optional<Finish> TellPrompt(Live& live, const PlanItem& item, MatrixView<const float> rows,
                                   EngineClock::time_point now);
  DrawnToken TakeDraw(Live& live, SequenceId id, const Result<ChoiceSampler::Draw>& draw,
                      EngineClock::time_point now, StepReport& report);
  void Put(Live& live, OutputEvent event, EngineClock::time_point now);
  void SignalFilled();
  void EndChoices(RequestId id, const Finish& finish);
  void Retire(RequestId id, EngineClock::time_point now);
  Usage UsageOf(const Live& live, const Choice& choice) const;

  const std::unique_ptr<Executor> executor_;
  const std::unique_ptr<Scheduler> scheduler_;
  const Tokenizer* const tokenizer_;
  const EngineOptions options_;
  EngineObserver* const observer_;
  std::map<RequestId, Live> live_;
  std::optional<Error> death_;                    // the executor failed
  std::vector<RequestId> ended_;                  // in this step, apart from the scheduler's doing
  std::vector<std::shared_ptr<Mailbox>> filled_;  // since the last SignalFilled
  int64_t steps_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t generation_tokens_ = 0;
  double mean_service_seconds_ = 1;
};

// Whether the engine can take the request; else the Refusal's reason, field and message.
std::optional<Refusal> Check(const Request& request, const ExecutorLimits& limits,
                             const Tokenizer* tokenizer);

}  // namespace halfbyte
