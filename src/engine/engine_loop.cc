#include "engine/engine_loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sampling/logprobs.h"

namespace halfbyte {
namespace {

double Seconds(EngineClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

bool AllFinite(std::span<const float> row) {
  return std::ranges::all_of(row, [](float z) { return z - z == 0; });
}

Finish Aborted(CancelCause cause) { return {.reason = FinishReason::kAbort, .cancelled = cause}; }

Finish Failed(const char* code, std::string message) {
  return {.reason = FinishReason::kError, .error_code = code, .error_message = std::move(message)};
}

}  // namespace

Result<std::unique_ptr<EngineLoop>> EngineLoop::Create(std::unique_ptr<Executor> executor,
                                                       const Tokenizer* tokenizer,
                                                       const EngineOptions& options,
                                                       EngineObserver* observer) {
  HB_ASSIGN_OR_RETURN(auto scheduler, Scheduler::Create(executor->limits(), options.scheduler));
  return std::unique_ptr<EngineLoop>(
      new EngineLoop(std::move(executor), std::move(scheduler), tokenizer, options, observer));
}

void EngineLoop::Add(RequestId id, Request request) {
  Live& live = live_[id];
  live.request = std::move(request);
  const Request& r = live.request;
  int64_t prompt_characters = 0;
  if (r.prompt_logprobs) {
    Utf8Stream decoder;
    for (const int32_t token : r.prompt) {
      live.prompt_offsets.push_back(prompt_characters);
      if (tokenizer_ == nullptr) continue;
      prompt_characters +=
          CountCharacters(decoder.Push(tokenizer_->TokenBytes(token).value_or(std::string_view())));
    }
    prompt_characters += CountCharacters(decoder.Flush());
  }
  for (int32_t choice = 0; choice < r.n; ++choice) {
    live.choices.push_back(
        std::make_unique<Choice>(r, choice, tokenizer_, options_, prompt_characters));
  }
  live.unfinished = r.n;
  live.report = {.id = id,
                 .label = r.label,
                 .n = r.n,
                 .max_tokens = r.max_tokens,
                 .finishes = std::vector<Finish>(static_cast<size_t>(r.n)),
                 .prompt_tokens = std::ssize(r.prompt),
                 .arrival = r.arrival};
  scheduler_->Add({.id = id,
                   .client = r.client,
                   .prompt = r.prompt,
                   .n = r.n,
                   .draws = r.max_tokens > 0,
                   .prompt_logits = r.prompt_logprobs,
                   .cache_salt = r.cache_salt});
}

void EngineLoop::Cancel(RequestId id, CancelCause cause) {
  if (!live_.contains(id)) return;
  if (!death_) scheduler_->Cancel(id);
  EndChoices(id, Aborted(cause));
  Retire(id, EngineClock::now());
  SignalFilled();
}

void EngineLoop::CancelAll(CancelCause cause) {
  while (!live_.empty()) Cancel(live_.begin()->first, cause);
}

std::map<ClientId, int64_t> EngineLoop::unadmitted() const {
  std::map<ClientId, int64_t> choices;
  for (const auto& [id, live] : live_) {
    if (!live.report.scheduled) choices[live.request.client] += live.request.n;
  }
  return choices;
}

void EngineLoop::CancelExpired(EngineClock::time_point now) {
  std::vector<std::pair<RequestId, CancelCause>> expired;
  for (const auto& [id, live] : live_) {
    const Request& request = live.request;
    if (request.finish_deadline && *request.finish_deadline <= now) {
      expired.emplace_back(id, CancelCause::kRequestTimeout);
    } else if (!live.report.scheduled && request.queue_deadline && *request.queue_deadline <= now) {
      expired.emplace_back(id, CancelCause::kQueueTimeout);
    }
  }
  for (const auto& [id, cause] : expired) Cancel(id, cause);
}

tl::unexpected<Error> EngineLoop::FailAll(EngineClock::time_point now) {
  while (!live_.empty()) {
    const RequestId id = live_.begin()->first;
    EndChoices(id, Failed("engine_dead", death_->message));
    Retire(id, now);
  }
  SignalFilled();
  return tl::unexpected<Error>(*death_);
}

tl::unexpected<Error> EngineLoop::Die(Error error) {
  death_ = std::move(error);
  return FailAll(EngineClock::now());
}

Result<bool> EngineLoop::Step() {
  if (death_) return FailAll(EngineClock::now());
  CancelExpired(EngineClock::now());
  const StepPlan plan = scheduler_->Next();
  if (plan.empty()) {
    HB_CHECK(live_.empty(), "{} requests, and none can go on", live_.size());
    return false;
  }
  NoteScheduled(plan, EngineClock::now());
  const auto logits = executor_->Run(plan);
  if (!logits) {
    return Die(logits.error());
  }
  const auto all_draws = DrawAll(plan, *logits);
  const EngineClock::time_point now = EngineClock::now();
  ++steps_;
  StepResult result;
  StepReport report{.tokens = plan.tokens()};
  int64_t row = 0;
  std::span draws(all_draws);
  for (const PlanItem& item : plan.items) {
    const MatrixView<const float> rows{logits->row(row), item.logits_rows(), logits->columns};
    const size_t count = item.drawing_choices.size();
    HandleItem(item, rows, draws.first(count), now, result, report);
    row += item.logits_rows();
    draws = draws.subspan(count);
  }
  scheduler_->Advance(result);
  SignalFilled();
  for (const RequestId id : std::exchange(ended_, {})) {
    scheduler_->Cancel(id);
    Retire(id, now);
  }
  std::vector<RequestId> slow;
  for (const auto& [id, live] : live_) {
    if (live.slow_client) slow.push_back(id);
  }
  for (const RequestId id : slow) Cancel(id, CancelCause::kSlowClient);
  generation_tokens_ += report.drawn;
  if (observer_ != nullptr) observer_->OnStep(report);
  return true;
}

void EngineLoop::NoteScheduled(const StepPlan& plan, EngineClock::time_point now) {
  for (const PlanItem& item : plan.items) {
    Live& live = live_.at(item.sequence.request);
    const Scheduler::RequestCounts counts = scheduler_->CountsOf(item.sequence.request);
    if (!live.report.scheduled) {
      live.report.cached_tokens = counts.cached_tokens;
      prompt_tokens_ += live.report.prompt_tokens;
      Put(live, {.choice = live.request.first_choice, .usage = UsageOf(live, *live.choices[0])},
          now);
    }
    if (!live.report.scheduled || counts.preemptions != live.report.preemptions) {
      live.report.scheduled = now;
      live.report.preemptions = counts.preemptions;
    }
  }
  SignalFilled();
}

// One draw for each drawing choice, in the order of the plan. Choices know nothing of each other,
// so they may draw side by side.
std::vector<Result<ChoiceSampler::Draw>> EngineLoop::DrawAll(const StepPlan& plan,
                                                             MatrixView<const float> logits) {
  struct Job {
    Choice* choice;
    std::span<const float> row;
  };
  std::vector<Job> jobs;
  int64_t row = 0;
  for (const PlanItem& item : plan.items) {
    row += item.logits_rows();
    Live& live = live_.at(item.sequence.request);
    for (const int32_t choice : item.drawing_choices) {
      jobs.push_back({live.choices[static_cast<size_t>(choice)].get(),
                      {logits.row(row - 1), static_cast<size_t>(logits.columns)}});
    }
  }
  std::vector<Result<ChoiceSampler::Draw>> draws(jobs.size());
  const auto draw = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Choice& choice = *jobs[i].choice;
      draws[i] = choice.sampler.Next(jobs[i].row, choice.output.in_reasoning());
    }
  };
  if (options_.pool != nullptr) {
    options_.pool->ParallelFor(std::ssize(jobs), /*grain=*/1, draw);
  } else {
    draw(0, std::ssize(jobs));
  }
  return draws;
}

void EngineLoop::HandleItem(const PlanItem& item, MatrixView<const float> rows,
                            std::span<const Result<ChoiceSampler::Draw>> draws,
                            EngineClock::time_point now, StepResult& result, StepReport& report) {
  const RequestId id = item.sequence.request;
  Live& live = live_.at(id);
  const std::optional<Finish> failure = TellPrompt(live, item, rows, now);
  for (size_t i = 0; i < draws.size(); ++i) {
    const SequenceId choice{id, item.drawing_choices[i]};
    if (failure) {
      result.push_back({.sequence = choice, .finished = true});
    } else {
      result.push_back(TakeDraw(live, choice, draws[i], now, report));
    }
  }
  const bool scored =
      live.request.max_tokens == 0 &&
      item.pages->position + std::ssize(item.tokens) == std::ssize(live.request.prompt);
  if (failure || scored) {
    EndChoices(id, failure.value_or(Finish{.reason = FinishReason::kLength}));
  }
  if (live.unfinished == 0) ended_.push_back(id);
}

// Log-probabilities of the prompt's tokens in the item's rows: row i predicts the token after the
// item's i-th. What ends the request, if something does.
std::optional<Finish> EngineLoop::TellPrompt(Live& live, const PlanItem& item,
                                             MatrixView<const float> rows,
                                             EngineClock::time_point now) {
  const Request& request = live.request;
  if (!request.prompt_logprobs) return std::nullopt;
  OutputEvent event{.choice = request.first_choice};
  const int64_t first = item.pages->position + std::ssize(item.tokens) - rows.rows;
  if (live.prompt_entries == 0) {
    event.prompt_logprobs.push_back(std::nullopt);
    ++live.prompt_entries;
  }
  for (int64_t i = 0; i < rows.rows; ++i) {
    const int64_t target = first + i + 1;
    if (target < live.prompt_entries || target >= std::ssize(request.prompt)) continue;
    const std::span<const float> row(rows.row(i), static_cast<size_t>(rows.columns));
    if (!AllFinite(row)) {
      return Failed("nonfinite_logits",
                    "nonfinite_logits: a logit after a token of the prompt is "
                    "not finite; halfbyte verify finds bad weights");
    }
    LogprobEntry entry =
        LogprobsOf(row, request.prompt[static_cast<size_t>(target)], *request.logprobs);
    entry.text_offset = live.prompt_offsets[static_cast<size_t>(target)];
    event.prompt_logprobs.push_back(std::move(entry));
    ++live.prompt_entries;
  }
  if (event.prompt_logprobs.empty()) return std::nullopt;
  event.usage = UsageOf(live, *live.choices[0]);
  Put(live, std::move(event), now);
  if (live.slow_client) return Aborted(CancelCause::kSlowClient);
  return std::nullopt;
}

DrawnToken EngineLoop::TakeDraw(Live& live, SequenceId id, const Result<ChoiceSampler::Draw>& draw,
                                EngineClock::time_point now, StepReport& report) {
  Choice& choice = *live.choices[static_cast<size_t>(id.choice)];
  DrawnToken drawn{.sequence = id};
  OutputEvent event{.choice = live.request.first_choice + id.choice};
  if (!draw) {
    choice.output.End(Failed("nonfinite_logits", draw.error().message), event);
  } else {
    drawn.token = draw->token;
    choice.output.Add(draw->token, draw->logprobs, event);
    ++report.drawn;
    if (choice.last_token) report.token_gaps.push_back(now - *choice.last_token);
    choice.last_token = now;
    if (!live.report.first_token) live.report.first_token = now;
  }
  drawn.finished = choice.output.finished();
  if (drawn.finished) {
    --live.unfinished;
    live.report.finishes[static_cast<size_t>(id.choice)] = *event.finish;
  }
  event.usage = UsageOf(live, choice);
  Put(live, std::move(event), now);
  return drawn;
}

Usage EngineLoop::UsageOf(const Live& live, const Choice& choice) const {
  return {.prompt_tokens = live.report.prompt_tokens,
          .cached_tokens = live.report.cached_tokens,
          .completion_tokens = choice.output.tokens(),
          .reasoning_tokens = choice.output.reasoning_tokens()};
}

void EngineLoop::Put(Live& live, OutputEvent event, EngineClock::time_point now) {
  event.ready = now;
  if (!live.request.mailbox->Put(std::move(event))) live.slow_client = true;
  filled_.push_back(live.request.mailbox);
}

// Who sends to clients is woken once for all of them: each wake may take the processor from this
// thread.
void EngineLoop::SignalFilled() {
  for (const auto& mailbox : filled_) mailbox->Signal();
  filled_.clear();
}

// All choices that go on.
void EngineLoop::EndChoices(RequestId id, const Finish& finish) {
  Live& live = live_.at(id);
  for (size_t i = 0; i < live.choices.size(); ++i) {
    Choice& choice = *live.choices[i];
    if (choice.output.finished()) continue;
    OutputEvent event{.choice = live.request.first_choice + static_cast<int32_t>(i)};
    choice.output.End(finish, event);
    live.report.finishes[i] = *event.finish;
    event.usage = UsageOf(live, choice);
    Put(live, std::move(event), EngineClock::now());
  }
  live.unfinished = 0;
}

void EngineLoop::Retire(RequestId id, EngineClock::time_point now) {
  Live& live = live_.at(id);
  RequestReport& report = live.report;
  HB_CHECK(live.unfinished == 0, "request {} has {} choices left", id, live.unfinished);
  report.finished = now;
  for (const auto& choice : live.choices) {
    report.completion_tokens += choice->output.tokens();
    report.suppressed += choice->output.suppressed();
  }
  if (report.scheduled) {
    constexpr double kWeight = 0.1;  // of the latest request
    mean_service_seconds_ += kWeight * (Seconds(now - *report.scheduled) - mean_service_seconds_);
  }
  if (observer_ != nullptr) observer_->OnFinished(report);
  live_.erase(id);
}

}  // namespace halfbyte
