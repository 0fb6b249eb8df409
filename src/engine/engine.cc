#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/memory_reserve.h"
#include "engine/engine_loop.h"

namespace halfbyte {
namespace {

// So many clients with a full queue each leave no room for others.
constexpr int64_t kClientsInQueue = 4;

}  // namespace

std::string_view Name(RefusalReason reason) {
  constexpr std::string_view kNames[] = {"invalid", "context_length_exceeded", "queue_full",
                                         "draining", "engine_dead"};
  return kNames[static_cast<size_t>(reason)];
}

// The thread that owns the loop, and what others leave for it. Requests pass through `inbox_`;
// everything else about them belongs to the thread.
class Engine::Thread {
 public:
  Thread(std::unique_ptr<EngineLoop> loop, const Tokenizer* tokenizer, const EngineOptions& options)
      : loop_(std::move(loop)), limits_(loop_->limits()), tokenizer_(tokenizer), options_(options) {
    Publish();
    thread_ = std::thread([this] { Main(); });
  }

  ~Thread() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    work_.notify_one();
    thread_.join();
  }

  tl::expected<std::vector<RequestId>, Refusal> Submit(std::vector<Request> call) {
    HB_CHECK(!call.empty(), "a call without requests");
    const ClientId client = call.front().client;
    int64_t choices = 0;
    for (const Request& request : call) {
      if (auto refusal = Check(request, limits_, tokenizer_)) return tl::unexpected(*refusal);
      HB_CHECK(request.client == client, "a call of clients {} and {}", client, request.client);
      choices += request.n;
    }
    std::vector<RequestId> ids;
    ids.reserve(call.size());
    {
      const std::lock_guard lock(mutex_);
      if (auto refusal = ClosedNow(client, choices)) return tl::unexpected(*refusal);
      inbox_.reserve(inbox_.size() + call.size());  // all of the call, or nothing
      waiting_[client] += choices;
      for (Request& request : call) {
        ids.push_back(++last_id_);
        inbox_.emplace_back(last_id_, std::move(request));
      }
    }
    work_.notify_one();
    return ids;
  }

  std::optional<Refusal> Closed(ClientId client) const {
    const std::lock_guard lock(mutex_);
    return ClosedNow(client, /*choices=*/1);
  }

  void Cancel(RequestId id, CancelCause cause) {
    {
      const std::lock_guard lock(mutex_);
      cancels_.emplace(id, cause);
    }
    work_.notify_one();
  }

  void CancelAll(CancelCause cause) {
    {
      const std::lock_guard lock(mutex_);
      cancel_all_ = cause;
    }
    work_.notify_one();
  }

  void Drain() {
    const std::lock_guard lock(mutex_);
    published_.draining = true;
  }

  EngineStatistics Statistics() const {
    const std::lock_guard lock(mutex_);
    EngineStatistics statistics = published_;
    statistics.unfinished_requests += std::ssize(inbox_);
    statistics.scheduler.waiting += std::ssize(inbox_);
    return statistics;
  }

  const ExecutorLimits& limits() const { return limits_; }

 private:
  // With the mutex held.
  std::optional<Refusal> ClosedNow(ClientId client, int64_t choices) const {
    const int64_t running = published_.scheduler.running;
    const auto found = waiting_.find(client);
    const int64_t own = found == waiting_.end() ? 0 : found->second;
    // What a large call has beyond its client's queue takes no room from others.
    int64_t all = 0, counted = 0;
    for (const auto& [other, waiting] : waiting_) {
      all += waiting;
      counted += std::min(waiting, options_.max_queued_requests);
    }
    const double rounds = std::ceil(static_cast<double>(all) * mean_service_seconds_ /
                                    static_cast<double>(std::max<int64_t>(1, running)));
    const auto retry_after = static_cast<int64_t>(std::clamp(rounds, 1.0, 60.0));
    if (published_.dead) {
      return Refusal{.reason = RefusalReason::kDead,
                     .message = fmt::format("the engine has failed: {}", published_.death)};
    }
    if (published_.draining) {
      return Refusal{.reason = RefusalReason::kDraining,
                     .message = "the engine is shutting down",
                     .retry_after_seconds = retry_after};
    }
    const int64_t free = std::max<int64_t>(0, options_.scheduler.max_sequences - running);
    const int64_t room = options_.max_queued_requests + free;
    const int64_t room_of_all = kClientsInQueue * options_.max_queued_requests + free;
    const bool takes_it = own == 0 ? counted < room_of_all
                                   : own + choices <= room && counted + choices <= room_of_all;
    if (takes_it) return std::nullopt;
    return Refusal{.reason = RefusalReason::kQueueFull,
                   .message = fmt::format("{} answers are waiting, {} of them for this client; try "
                                          "again in {} s",
                                          all, own, retry_after),
                   .retry_after_seconds = retry_after};
  }

  // Where the reserve for this thread does not suffice either, nothing is left to go on with.
  Result<bool> Step() {
    try {
      return loop_->Step();
    } catch (const std::bad_alloc&) {
      return loop_->Die(Error{"memory ran out in a step", ErrorKind::kMemory});
    }
  }

  void Main() {
    MarkEssentialThread();
    for (bool busy = true;;) {
      if (!TakeMail(busy)) break;
      const auto stepped = Step();
      busy = stepped.value_or(false);
      if (!stepped) {
        const std::lock_guard lock(mutex_);
        published_.dead = true;
        published_.death = stepped.error().message;
      }
      Publish();
    }
    loop_->CancelAll(CancelCause::kShutdown);
    Publish();
  }

  // Waits for something to do, then hands it to the loop. False at the end.
  bool TakeMail(bool busy) {
    std::vector<std::pair<RequestId, Request>> inbox;
    std::map<RequestId, CancelCause> cancels;
    std::optional<CancelCause> cancel_all;
    bool closing;
    {
      std::unique_lock lock(mutex_);
      const auto mail = [this] {
        return closing_ || !inbox_.empty() || !cancels_.empty() || cancel_all_;
      };
      if (!busy) work_.wait(lock, mail);
      inbox.swap(inbox_);
      published_.unfinished_requests += std::ssize(inbox);
      cancels.swap(cancels_);
      cancel_all = std::exchange(cancel_all_, std::nullopt);
      closing = closing_;
    }
    for (auto& [id, request] : inbox) loop_->Add(id, std::move(request));
    for (const auto& [id, cause] : cancels) loop_->Cancel(id, cause);
    if (cancel_all) loop_->CancelAll(*cancel_all);
    return !closing;
  }

  void Publish() {
    EngineStatistics now{.scheduler = loop_->counts(),
                         .unfinished_requests = loop_->unfinished(),
                         .steps = loop_->steps(),
                         .prompt_tokens = loop_->prompt_tokens(),
                         .generation_tokens = loop_->generation_tokens(),
                         .saturated_blocks = loop_->saturated_blocks(),
                         .last_progress = EngineClock::now()};
    std::map<ClientId, int64_t> waiting = loop_->unadmitted();
    const std::lock_guard lock(mutex_);
    for (const auto& [id, request] : inbox_) waiting[request.client] += request.n;
    waiting_ = std::move(waiting);
    now.draining = published_.draining;
    now.dead = published_.dead;
    now.death = std::move(published_.death);
    published_ = std::move(now);
    mean_service_seconds_ = loop_->mean_service_seconds();
  }

  const std::unique_ptr<EngineLoop> loop_;
  const ExecutorLimits limits_;
  const Tokenizer* const tokenizer_;
  const EngineOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::vector<std::pair<RequestId, Request>> inbox_;
  std::map<RequestId, CancelCause> cancels_;
  std::optional<CancelCause> cancel_all_;
  bool closing_ = false;
  RequestId last_id_ = 0;
  EngineStatistics published_;
  std::map<ClientId, int64_t> waiting_;  // choices that are not in the batch so far
  double mean_service_seconds_ = 1;

  std::thread thread_;
};

Engine::Engine(std::unique_ptr<Thread> thread) : thread_(std::move(thread)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Start(std::unique_ptr<Executor> executor,
                                              const Tokenizer* tokenizer,
                                              const EngineOptions& options,
                                              EngineObserver* observer) {
  HB_ASSIGN_OR_RETURN(auto loop,
                      EngineLoop::Create(std::move(executor), tokenizer, options, observer));
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Thread>(std::move(loop), tokenizer, options)));
}

tl::expected<std::vector<RequestId>, Refusal> Engine::Submit(std::vector<Request> call) {
  return thread_->Submit(std::move(call));
}
tl::expected<RequestId, Refusal> Engine::Submit(Request request) {
  std::vector<Request> call;
  call.push_back(std::move(request));
  const auto ids = thread_->Submit(std::move(call));
  if (!ids) return tl::unexpected(ids.error());
  return ids->front();
}
std::optional<Refusal> Engine::Closed(ClientId client) const { return thread_->Closed(client); }
void Engine::Cancel(RequestId id, CancelCause cause) { thread_->Cancel(id, cause); }
void Engine::CancelAll(CancelCause cause) { thread_->CancelAll(cause); }
void Engine::Drain() { thread_->Drain(); }
EngineStatistics Engine::Statistics() const { return thread_->Statistics(); }
const ExecutorLimits& Engine::limits() const { return thread_->limits(); }

}  // namespace halfbyte
