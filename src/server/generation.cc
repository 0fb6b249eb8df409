#include "server/generation.h"

#include <algorithm>
#include <mutex>
#include <new>
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

// Bytes of events whose JSON an IO thread writes in less than a millisecond.
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
  std::stop_source gone;  // the reply is
  std::mutex mutex;
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
  Job(const GenerationContext& context, ClientId client, bool chat, HttpRequest request,
      std::shared_ptr<CallRecord> call, std::shared_ptr<Mailbox> mailbox)
      : context_(context),
        client_(client),
        chat_(chat),
        request_(std::move(request)),
        call_(std::move(call)),
        mailbox_(std::move(mailbox)) {}

  void Run(Handover& handover) {
    const std::stop_token gone = handover.gone.get_token();
    if (gone.stop_requested()) return;
    if (context_.log_prompts) {
      spdlog::info("request id={} body={}", call_->id,
                   Json(request_.body).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    auto parsed = chat_ ? context_.api.ParseChat(request_.body, gone)
                        : context_.api.ParseCompletions(request_.body, gone);
    // With the mutex: a reply that dies now finds all ids or none.
    const std::lock_guard lock(handover.mutex);
    if (gone.stop_requested()) return;
    auto submitted = parsed ? Submit(*std::move(parsed)) : tl::unexpected(parsed.error());
    if (submitted) {
      handover.result.emplace(*std::move(submitted));
      return;
    }
    if (submitted.error().status != 400) context_.metrics.CountRejection(submitted.error().code);
    handover.result.emplace(ErrorResponse(submitted.error()));
  }

  // After Run has thrown: what it took is free again.
  void FailForMemory(Handover& handover) {
    const ApiError error = OutOfMemory();
    context_.metrics.CountRejection(error.code);
    const std::lock_guard lock(handover.mutex);
    if (!handover.result) handover.result.emplace(ErrorResponse(error));
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
      request.client = client_;
      request.label = call_->id;
      request.arrival = call_->arrival;
      request.queue_deadline = Deadline(context_.queue_timeout);
      request.finish_deadline = Deadline(context_.request_timeout);
      request.mailbox = mailbox_;
    }
    auto ids = context_.engine.Submit(std::move(parsed.requests));
    if (!ids) return tl::unexpected(ErrorOf(ids.error(), context_.overload_status));
    submitted.ids = *std::move(ids);
    try {
      for (const RequestId id : submitted.ids) context_.log.Submitted(call_, id);
    } catch (const std::bad_alloc&) {  // the client will not get them
      for (const RequestId id : submitted.ids) {
        context_.engine.Cancel(id, CancelCause::kDisconnected);
      }
      throw;
    }
    return submitted;
  }

  std::optional<EngineClock::time_point> Deadline(
      const std::optional<std::chrono::duration<double>>& timeout) const {
    if (!timeout) return std::nullopt;
    return call_->arrival + std::chrono::duration_cast<EngineClock::duration>(*timeout);
  }

  const GenerationContext& context_;
  const ClientId client_;
  const bool chat_;
  const HttpRequest request_;
  const std::shared_ptr<CallRecord> call_;
  const std::shared_ptr<Mailbox> mailbox_;
};

class GenerationReply : public HttpReply {
 public:
  GenerationReply(const GenerationContext& context, std::shared_ptr<Handover> handover,
                  std::shared_ptr<Mailbox> mailbox, WorkPool& pool, ClientId client, Wake wake,
                  bool tell_times)
      : context_(context),
        handover_(std::move(handover)),
        mailbox_(std::move(mailbox)),
        pool_(pool),
        client_(client),
        wake_(std::move(wake)),
        tell_times_(tell_times) {}

  ~GenerationReply() override {
    handover_->gone.request_stop();
    TakeResult();
    Cancel(CancelCause::kDisconnected);
  }

  Output Poll() override {
    if (written_ != nullptr) return written_->Poll();
    if (running_ == nullptr && !TakeResult()) return {};
    if (refused_) return Whole(*std::exchange(refused_, std::nullopt));
    return running_->stream ? PollStream() : PollWhole();
  }

 private:
  // What the pool writes of a stream.
  struct Chunk {
    std::mutex mutex;
    std::optional<std::string> text;
  };

  // From the job; false if it has not come so far.
  bool TakeResult() {
    const std::lock_guard lock(handover_->mutex);
    if (!handover_->result) return false;
    if (auto* response = std::get_if<HttpResponse>(&*handover_->result)) {
      refused_ = std::move(*response);
    } else {
      running_ = std::make_shared<Submitted>(std::get<Submitted>(std::move(*handover_->result)));
    }
    handover_->result.reset();
    return true;
  }

  Output PollStream() {
    if (chunk_ == nullptr && events_.empty()) {
      events_ = mailbox_->Take();
      ObserveDelays(events_);
    }
    std::optional<std::string> text = Written();
    if (!text) return {};
    const auto now = EngineClock::now();
    Output output{.bytes = *std::move(text)};
    const Answer& answer = running_->answer;
    output.done = answer.finished();
    // The first event says at the earliest that the request is in the batch: from now on it is a
    // stream, before it an answer with a status.
    const bool opens = !head_sent_ && took_events_;
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

  // The chunks of events_. Many are written on the pool; none while it does, or while it is full:
  // then the next poll asks again, and the mailbox fills.
  std::optional<std::string> Written() {
    if (const auto chunk = chunk_) {
      const std::lock_guard lock(chunk->mutex);
      if (chunk->text) chunk_.reset();
      return std::move(chunk->text);
    }
    if (events_.empty()) return "";
    took_events_ = true;
    const auto write = [running = running_,
                        tell_times = tell_times_](std::vector<OutputEvent> events) {
      const std::string times = tell_times ? TimesOf(events) : "";
      return times + running->answer.Stream(std::move(events));
    };
    int64_t bytes = 0;
    for (const OutputEvent& event : events_) bytes += event.bytes();
    if (bytes <= kMostToWriteHere) return write(std::exchange(events_, {}));
    const auto chunk = std::make_shared<Chunk>();
    const auto events = std::make_shared<std::vector<OutputEvent>>(std::move(events_));
    const bool posted = pool_.TryPost(client_, [chunk, events, write, wake = wake_] {
      std::string text = write(std::move(*events));
      {
        const std::lock_guard lock(chunk->mutex);
        chunk->text = std::move(text);
      }
      wake();
    });
    if (posted) {
      events_.clear();
      chunk_ = chunk;
    } else {
      events_ = std::move(*events);
    }
    return std::nullopt;
  }

  Output PollWhole() {
    std::vector<OutputEvent> events = mailbox_->Take();
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
    running_->ids.clear();
    const auto write = [kept = running_](std::stop_token) {
      HttpResponse response = JsonResponse(200, kept->answer.Body());
      for (const auto& [name, value] : kept->notes) response.head.fields.Add(name, value);
      return response;
    };
    if (bytes_ > kMostToWriteHere) {
      // A pool that is full is asked again with the next poll.
      written_ = AnswerOnPool(pool_, client_, write, wake_);
      return {};
    }
    HttpResponse response = write({});
    return {.head = std::move(response.head), .bytes = std::move(response.body), .done = true};
  }

  Output Whole(HttpResponse response) {
    if (running_ != nullptr) {
      for (const auto& [name, value] : running_->notes) response.head.fields.Add(name, value);
    }
    return End({.head = std::move(response.head), .bytes = std::move(response.body), .done = true});
  }

  // One choice may have failed while others run.
  Output End(Output output) {
    if (running_ != nullptr && running_->answer.error()) Cancel(CancelCause::kClient);
    if (running_ != nullptr) running_->ids.clear();
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
    if (running_ == nullptr) return;
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
  const ClientId client_;
  const Wake wake_;
  const bool tell_times_;
  std::shared_ptr<Submitted> running_;  // its answer is the pool's while that writes a chunk
  std::vector<OutputEvent> events_;     // of a stream, not written so far
  std::shared_ptr<Chunk> chunk_;        // being written
  int64_t bytes_ = 0;                   // of the events of a whole answer
  std::unique_ptr<HttpReply> written_;  // its body, on the pool
  std::optional<HttpResponse> refused_;
  bool took_events_ = false;
  bool head_sent_ = false;
  EngineClock::time_point last_sent_;
};

class PooledReply : public HttpReply {
 public:
  struct Slot {
    std::stop_source gone;  // the reply is
    std::mutex mutex;
    std::optional<HttpResponse> response;
  };
  explicit PooledReply(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}
  ~PooledReply() override { slot_->gone.request_stop(); }

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

std::unique_ptr<HttpReply> Generate(const GenerationContext& context, WorkPool& pool,
                                    ClientId client, bool chat, HttpRequest request, Wake wake,
                                    std::shared_ptr<CallRecord> call) {
  const auto refuse = [&](const ApiError& error) {
    context.metrics.CountRejection(error.code);
    return ReplyWith(ErrorResponse(error));
  };
  if (const auto closed = context.engine.Closed(client)) {
    return refuse(ErrorOf(*closed, context.overload_status));
  }
  const bool tell_times = request.fields.Find("x-halfbyte-timing") == "on";
  const auto handover = std::make_shared<Handover>();
  const auto mailbox = std::make_shared<Mailbox>(wake);
  const auto job =
      std::make_shared<Job>(context, client, chat, std::move(request), std::move(call), mailbox);
  const bool posted = pool.TryPost(client, [job, handover, wake] {
    try {
      job->Run(*handover);
    } catch (const std::bad_alloc&) {
      job->FailForMemory(*handover);
    }
    wake();
  });
  if (!posted) return refuse(PoolIsFull(context.overload_status));
  return std::make_unique<GenerationReply>(context, handover, mailbox, pool, client,
                                           std::move(wake), tell_times);
}

ApiError OutOfMemory() {
  return {.status = 503,
          .code = "out_of_memory",
          .message = "the server has no memory left for this request; send a smaller one, or later",
          .retry_after_seconds = 1};
}

ApiError PoolIsFull(int overload_status) {
  return {.status = overload_status,
          .code = "queue_full",
          .message = "too many requests of this client are being read; try again in 1 s",
          .retry_after_seconds = 1};
}

std::unique_ptr<HttpReply> AnswerOnPool(WorkPool& pool, ClientId client,
                                        std::function<HttpResponse(std::stop_token)> work,
                                        Wake wake) {
  const auto slot = std::make_shared<PooledReply::Slot>();
  const bool posted = pool.TryPost(client, [slot, work = std::move(work), wake = std::move(wake)] {
    if (slot->gone.stop_requested()) return;
    HttpResponse response;
    try {
      response = work(slot->gone.get_token());
    } catch (const std::bad_alloc&) {
      response = ErrorResponse(OutOfMemory());
    }
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
