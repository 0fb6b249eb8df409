#include "server/generation.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <variant>

#include "base/json.h"
#include "base/log.h"
#include "engine/mailbox.h"
#include "openai/answer.h"
#include "server/responses.h"

namespace halfbyte {
namespace {

// Bytes of events whose JSON an IO thread writes in a fraction of a millisecond.
constexpr int64_t kMostToWriteHere = 64 << 10;

// What the engine has taken.
struct Submitted {
  std::vector<RequestId> ids;
  Answer answer;
  bool stream = false;
  HttpFields notes;
};

// Between the job and the reply.
struct Handover {
  std::mutex mutex;
  bool abandoned = false;  // the reply is gone
  std::optional<std::variant<Submitted, HttpResponse>> result;
};

void LogIgnoredOnce(const std::vector<std::string>& names) {
  constexpr size_t kMost = 256;
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::lock_guard lock(mutex);
  for (const std::string& name : names) {
    if (logged.size() < kMost && logged.insert(name).second) {
      spdlog::warn("the field {} of a request is of no API that is served here; ignored",
                   Json(name).dump(-1, ' ', true, Json::error_handler_t::replace));
    }
  }
}

// Runs on the pool.
class Job {
 public:
  Job(const GenerationContext& context, bool chat, HttpRequest request,
      std::shared_ptr<CallRecord> call, std::shared_ptr<Mailbox> mailbox)
      : context_(context),
        chat_(chat),
        request_(std::move(request)),
        call_(std::move(call)),
        mailbox_(std::move(mailbox)) {}

  void Run(Handover& handover) {
    {
      const std::lock_guard lock(handover.mutex);
      if (handover.abandoned) return;
    }
    if (context_.log_prompts) {
      spdlog::info("request id={} body={}", call_->id,
                   Json(request_.body).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    auto parsed = chat_ ? context_.api.ParseChat(request_.body)
                        : context_.api.ParseCompletions(request_.body);
    // With the mutex: a reply that dies now finds all ids or none.
    const std::lock_guard lock(handover.mutex);
    if (handover.abandoned) return;
    auto submitted = parsed ? Submit(*std::move(parsed)) : tl::unexpected(parsed.error());
    if (submitted) {
      handover.result.emplace(*std::move(submitted));
      return;
    }
    if (submitted.error().status != 400) context_.metrics.CountRejection(submitted.error().code);
    handover.result.emplace(ErrorResponse(submitted.error()));
  }

 private:
  ApiResult<Submitted> Submit(GenerationCall parsed) {
    using std::chrono::duration_cast;
    LogIgnoredOnce(parsed.ignored);
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    Submitted submitted{
        .answer = {context_.api.model(), parsed, (chat_ ? "chatcmpl-" : "cmpl-") + call_->id,
                   duration_cast<std::chrono::seconds>(now).count()},
        .stream = parsed.form.stream};
    AddNotes(submitted.notes, parsed.ignored, parsed.clamped, parsed.thinking);
    for (Request& request : parsed.requests) {
      if (parsed.seed_drawn) {
        spdlog::debug("request id={} seed={}", call_->id, request.sampling.seed);
      }
      request.label = call_->id;
      request.arrival = call_->arrival;
      request.queue_deadline = Deadline(context_.queue_timeout);
      request.finish_deadline = Deadline(context_.request_timeout);
      request.mailbox = mailbox_;
      const auto id = context_.engine.Submit(std::move(request));
      if (!id) {
        for (const RequestId other : submitted.ids) {
          context_.engine.Cancel(other, CancelCause::kClient);
        }
        return tl::unexpected(ErrorOf(id.error(), context_.overload_status));
      }
      context_.log.Submitted(call_, *id);
      submitted.ids.push_back(*id);
    }
    return submitted;
  }

  std::optional<EngineClock::time_point> Deadline(
      const std::optional<std::chrono::duration<double>>& timeout) const {
    if (!timeout) return std::nullopt;
    return call_->arrival + std::chrono::duration_cast<EngineClock::duration>(*timeout);
  }

  const GenerationContext& context_;
  const bool chat_;
  const HttpRequest request_;
  const std::shared_ptr<CallRecord> call_;
  const std::shared_ptr<Mailbox> mailbox_;
};

class GenerationReply : public HttpReply {
 public:
  GenerationReply(const GenerationContext& context, std::shared_ptr<Handover> handover,
                  std::shared_ptr<Mailbox> mailbox, WorkPool& pool, Wake wake, bool tell_times)
      : context_(context),
        handover_(std::move(handover)),
        mailbox_(std::move(mailbox)),
        pool_(pool),
        wake_(std::move(wake)),
        tell_times_(tell_times) {}

  ~GenerationReply() override {
    TakeResult(/*abandon=*/true);
    Cancel(CancelCause::kDisconnected);
  }

  Output Poll() override {
    if (written_ != nullptr) return written_->Poll();
    if (!running_ && !TakeResult(/*abandon=*/false)) return {};
    if (refused_) return Whole(*std::exchange(refused_, std::nullopt));
    std::vector<OutputEvent> events = mailbox_->Take();
    ObserveDelays(events);
    return running_->stream ? PollStream(std::move(events)) : PollWhole(std::move(events));
  }

 private:
  // From the job; false if it has not come so far.
  bool TakeResult(bool abandon) {
    const std::lock_guard lock(handover_->mutex);
    handover_->abandoned = abandon;
    if (!handover_->result) return false;
    if (auto* response = std::get_if<HttpResponse>(&*handover_->result)) {
      refused_ = std::move(*response);
    } else {
      running_.emplace(std::get<Submitted>(std::move(*handover_->result)));
    }
    handover_->result.reset();
    return true;
  }

  Output PollStream(std::vector<OutputEvent> events) {
    const auto now = EngineClock::now();
    Output output;
    // The first event says at the earliest that the request is in the batch: from now on it is a
    // stream, before it an answer with a status.
    const bool opens = !head_sent_ && !events.empty();
    Answer& answer = running_->answer;
    if (tell_times_) output.bytes = TimesOf(events);
    if (!events.empty()) output.bytes += answer.Stream(std::move(events));
    output.done = answer.finished();
    if (opens && answer.error()) return Whole(ErrorResponse(*answer.error()));
    if (opens) {
      output.head = StreamHead();
      head_sent_ = true;
      last_sent_ = now;
    }
    if (output.done) return End(std::move(output));
    if (!output.bytes.empty()) {
      last_sent_ = now;
    } else if (head_sent_ && now - last_sent_ >= context_.ping_interval) {
      output.bytes = Answer::kPing;
      last_sent_ = now;
    }
    return output;
  }

  Output PollWhole(std::vector<OutputEvent> events) {
    for (const OutputEvent& event : events) bytes_ += event.bytes();
    Answer& answer = running_->answer;
    answer.Add(std::move(events));
    if (!answer.finished()) return {};
    if (answer.error()) return Whole(ErrorResponse(*answer.error()));
    return Finished();
  }

  // The body of a complete answer. A long one is written on the pool, perhaps while nobody waits
  // for it any more.
  Output Finished() {
    const auto kept = std::make_shared<const Submitted>(*std::exchange(running_, std::nullopt));
    const auto write = [kept] {
      HttpResponse response = JsonResponse(200, kept->answer.Body());
      for (const auto& [name, value] : kept->notes) response.head.fields.Add(name, value);
      return response;
    };
    if (bytes_ > kMostToWriteHere) written_ = AnswerOnPool(pool_, write, wake_);
    if (written_ != nullptr) return {};
    HttpResponse response = write();
    return {.head = std::move(response.head), .bytes = std::move(response.body), .done = true};
  }

  Output Whole(HttpResponse response) {
    if (running_) {
      for (const auto& [name, value] : running_->notes) response.head.fields.Add(name, value);
    }
    return End({.head = std::move(response.head), .bytes = std::move(response.body), .done = true});
  }

  // One choice may have failed while others run.
  Output End(Output output) {
    if (running_ && running_->answer.error()) Cancel(CancelCause::kClient);
    if (running_) running_->ids.clear();
    return output;
  }

  HttpHead StreamHead() {
    HttpHead head{.fields = {{"Content-Type", "text/event-stream; charset=utf-8"},
                             {"Cache-Control", "no-cache"},
                             {"X-Accel-Buffering", "no"}}};
    for (const auto& [name, value] : running_->notes) head.fields.Add(name, value);
    return head;
  }

  void Cancel(CancelCause cause) {
    if (!running_) return;
    for (const RequestId id : running_->ids) context_.engine.Cancel(id, cause);
  }

  // For load generators: comments with the time, in nanoseconds of CLOCK_MONOTONIC, at which the
  // tokens that follow were drawn.
  static std::string TimesOf(const std::vector<OutputEvent>& events) {
    std::string times;
    for (const OutputEvent& event : events) {
      if (event.token_ids.empty()) continue;
      const std::chrono::nanoseconds ready = event.ready.time_since_epoch();
      times += fmt::format(": ready {}\n", ready.count());
    }
    return times;
  }

  void ObserveDelays(const std::vector<OutputEvent>& events) {
    if (events.empty() || !running_->stream) return;
    const auto now = EngineClock::now();
    for (const OutputEvent& event : events) {
      if (event.token_ids.empty()) continue;
      const std::chrono::duration<double> delay = now - event.ready;
      context_.metrics.ObserveChunkDelay(delay.count());
    }
  }

  const GenerationContext& context_;
  const std::shared_ptr<Handover> handover_;
  const std::shared_ptr<Mailbox> mailbox_;
  WorkPool& pool_;
  const Wake wake_;
  const bool tell_times_;
  std::optional<Submitted> running_;
  int64_t bytes_ = 0;                   // of the events of a whole answer
  std::unique_ptr<HttpReply> written_;  // its body, on the pool
  std::optional<HttpResponse> refused_;
  bool head_sent_ = false;
  EngineClock::time_point last_sent_;
};

class PooledReply : public HttpReply {
 public:
  struct Slot {
    std::mutex mutex;
    std::optional<HttpResponse> response;
  };
  explicit PooledReply(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

  Output Poll() override {
    const std::lock_guard lock(slot_->mutex);
    if (!slot_->response) return {};
    return {.head = std::move(slot_->response->head),
            .bytes = std::move(slot_->response->body),
            .done = true};
  }

 private:
  const std::shared_ptr<Slot> slot_;
};

}  // namespace

std::unique_ptr<HttpReply> Generate(const GenerationContext& context, WorkPool& pool, bool chat,
                                    HttpRequest request, Wake wake,
                                    std::shared_ptr<CallRecord> call) {
  const auto refuse = [&](const ApiError& error) {
    context.metrics.CountRejection(error.code);
    return ReplyWith(ErrorResponse(error));
  };
  if (const auto closed = context.engine.Closed()) {
    return refuse(ErrorOf(*closed, context.overload_status));
  }
  const bool tell_times = request.fields.Find("x-halfbyte-timing") == "on";
  const auto handover = std::make_shared<Handover>();
  const auto mailbox = std::make_shared<Mailbox>(wake);
  const auto job =
      std::make_shared<Job>(context, chat, std::move(request), std::move(call), mailbox);
  const bool posted = pool.TryPost([job, handover, wake] {
    job->Run(*handover);
    wake();
  });
  if (!posted) return refuse(PoolIsFull(context.overload_status));
  return std::make_unique<GenerationReply>(context, handover, mailbox, pool, std::move(wake),
                                           tell_times);
}

ApiError PoolIsFull(int overload_status) {
  return {.status = overload_status,
          .code = "queue_full",
          .message = "too many requests are being read; try again in 1 s",
          .retry_after_seconds = 1};
}

std::unique_ptr<HttpReply> AnswerOnPool(WorkPool& pool, std::function<HttpResponse()> work,
                                        Wake wake) {
  const auto slot = std::make_shared<PooledReply::Slot>();
  const bool posted = pool.TryPost([slot, work = std::move(work), wake = std::move(wake)] {
    HttpResponse response = work();
    {
      const std::lock_guard lock(slot->mutex);
      slot->response = std::move(response);
    }
    wake();
  });
  return posted ? std::make_unique<PooledReply>(slot) : nullptr;
}

void AddNotes(HttpFields& fields, const std::vector<std::string>& ignored,
              const std::optional<int64_t>& clamped, const std::optional<ThinkingUsed>& thinking) {
  constexpr size_t kMostBytes = 1024;
  std::string names;
  for (const std::string& name : ignored) {
    if (names.size() + name.size() > kMostBytes) {
      names += ", ...";
      break;
    }
    names += (names.empty() ? "" : ", ") + name;
  }
  if (!names.empty()) fields.Add("x-halfbyte-ignored", names);
  if (clamped) fields.Add("x-halfbyte-clamped", std::to_string(*clamped));
  if (thinking) fields.Add("x-halfbyte-thinking", thinking->Header());
}

}  // namespace halfbyte
