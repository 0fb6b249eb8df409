#include "loadgen/load_run.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "loadgen/client_connection.h"
#include "loadgen/metrics_text.h"

namespace halfbyte {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kLiveInterval = milliseconds(20);
constexpr auto kMetricsInterval = milliseconds(1000);
constexpr auto kSettled = milliseconds(1000);  // then come bursts, then clients leave together
constexpr int64_t kBurstPortion = 32;          // between two looks at what has come
constexpr size_t kMaxFaultsTold = 5;

constexpr std::array<std::string_view, 6> kMalformedBodies = {
    R"({"prompt": [1, 2)",
    R"({"prompt": {"text": 1}, "max_tokens": 1})",
    R"({"prompt": "x", "max_tokens": -1})",
    R"({"prompt": "x", "max_tokens": 123456789012345678901234567890})",
    R"({"prompt": "x", "model": "no such model", "max_tokens": 1})",
    "{\"prompt\": \"\xff\xfe\", \"max_tokens\": 1}",
};

enum class Role { kStream, kBurst, kStalled, kLive, kMetrics };

struct Client {
  Client(Role its_role, int epoll) : role(its_role), connection(epoll, this) {}

  const Role role;
  ClientConnection connection;
  bool malformed = false;
  StreamCheck check{nullptr};
  int64_t leave_after = 0;  // events with tokens; 0: stays
  int64_t events = 0;       // of those, so far
  Clock::time_point began, last_event;
  bool asking = false;  // an answer is under way
  std::string body;     // of an answer that is no stream
};

class LoadRun {
 public:
  explicit LoadRun(const LoadOptions& options)
      : options_(options), random_(options.seed), server_(options.server.SocketAddress()) {}
  ~LoadRun() {
    clients_.clear();
    if (epoll_ >= 0) close(epoll_);
  }
  Result<LoadResult> Run();

 private:
  Client& Add(Role role) { return *clients_.emplace_back(std::make_unique<Client>(role, epoll_)); }
  void AddAsking(Role role, int64_t count);
  void Ask(Client& client);
  void Send(Client& client, std::string request);
  void Probe(Client& client, std::string_view path, Clock::time_point& next,
             Clock::duration interval);
  void Continue(Client& client, uint32_t events);
  bool TakeStream(Client& client, std::string_view bytes, Clock::time_point now);
  void EndAnswer(Client& client, Clock::time_point now);
  void EndRefusal(Client& client, Clock::time_point now);
  void EndProbe(Client& client, Clock::time_point now);
  void LeaveTogether();
  void Finish(Client& client, bool stays);
  void Fault(Client& client, std::string_view message);
  double WaitForStalled();

  const LoadOptions& options_;
  LoadResult result_;
  std::mt19937_64 random_;
  const sockaddr_in server_;
  int epoll_ = -1;
  CompletionReader completions_;
  std::vector<std::unique_ptr<Client>> clients_;
  int64_t to_start_ = 0;    // requests of the kStream clients
  int64_t unfinished_ = 0;  // kStream and kBurst clients that have not retired
  Clock::time_point begin_;
  std::optional<Clock::time_point> left_;  // together; until their requests are gone
};

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<LoadResult> LoadRun::Run() {
  RaiseFileLimit();
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return MakeError("no epoll: {}", std::strerror(errno));
  begin_ = Clock::now();
  to_start_ = options_.count;
  AddAsking(Role::kStalled, options_.stalled_clients);
  AddAsking(Role::kStream, options_.concurrency);
  Client& live = Add(Role::kLive);
  Client& metrics = Add(Role::kMetrics);
  Clock::time_point next_live = begin_, next_metrics = begin_;
  int64_t burst = options_.burst;
  bool leaving = options_.leave_together > 0;
  std::array<epoll_event, 512> events;
  while ((unfinished_ > 0 || burst > 0) && Clock::now() < begin_ + options_.limit) {
    const bool bursting = burst > 0 && Clock::now() >= begin_ + kSettled;
    if (bursting) {
      const int64_t portion = std::min(burst, kBurstPortion);
      AddAsking(Role::kBurst, portion);
      burst -= portion;
    }
    if (leaving && Clock::now() >= begin_ + kSettled) {
      leaving = false;
      LeaveTogether();
    }
    if (options_.probe_live) Probe(live, "/live", next_live, kLiveInterval);
    if (left_) next_metrics = begin_;
    Probe(metrics, "/metrics", next_metrics, kMetricsInterval);
    const int count = epoll_wait(epoll_, events.data(), events.size(), bursting ? 0 : 10);
    for (int i = 0; i < count; ++i) {
      Continue(*static_cast<Client*>(events[static_cast<size_t>(i)].data.ptr),
               events[static_cast<size_t>(i)].events);
    }
  }
  result_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  if (unfinished_ > 0) {
    result_.faults += unfinished_;
    result_.first_faults.push_back(
        fmt::format("{} clients had not ended after {} s", unfinished_, options_.limit.count()));
  }
  if (options_.stalled_clients > 0) result_.stalled_released = WaitForStalled();
  return std::move(result_);
}

void LoadRun::AddAsking(Role role, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    Client& client = Add(role);
    if (role != Role::kStalled) ++unfinished_;
    if (role == Role::kStream && to_start_ == 0) {
      Finish(client, false);
    } else {
      Ask(client);
    }
  }
}

// The next request of the list, as it is or malformed, to be read to its end or not.
void LoadRun::Ask(Client& client) {
  if (client.role == Role::kStream) --to_start_;
  const LoadRequest& request =
      options_.requests[static_cast<size_t>(result_.started++) % options_.requests.size()];
  const auto chance = [this](double fraction) {
    return std::uniform_real_distribution<double>()(random_) < fraction;
  };
  client.malformed = client.role == Role::kStream && chance(options_.malformed_fraction);
  client.leave_after = 0;
  if (client.role == Role::kStream && chance(options_.disconnect_fraction)) {
    const auto most = std::max<int64_t>(1, std::ssize(request.expected.ids) - 1);
    client.leave_after = std::uniform_int_distribution<int64_t>(1, most)(random_);
  }
  client.events = 0;
  client.check = StreamCheck(&request.expected);
  const std::string_view body = client.malformed
                                    ? kMalformedBodies[random_() % kMalformedBodies.size()]
                                    : std::string_view(request.body);
  Send(client, RequestText(options_.server, "/v1/completions", body, options_.key));
}

void LoadRun::Send(Client& client, std::string request) {
  client.body.clear();
  client.asking = true;
  client.began = Clock::now();
  const Status begun =
      client.connection.Begin(server_, std::move(request), client.role == Role::kStalled);
  if (!begun) Fault(client, begun.error().message);
}

void LoadRun::Probe(Client& client, std::string_view path, Clock::time_point& next,
                    Clock::duration interval) {
  if (client.asking || Clock::now() < next) return;
  next = std::max(next + interval, Clock::now());
  Send(client, RequestText(options_.server, path, "", options_.key));
}

void LoadRun::Continue(Client& client, uint32_t events) {
  if (!client.connection.open()) return;  // closed earlier in this round
  std::string bytes;
  const Status read = client.connection.Continue(events, bytes);
  const Clock::time_point now = Clock::now();
  if (!client.asking) {  // the server gives up an idle or stalled connection
    if (!read || !client.connection.answer().keep_alive()) client.connection.Close();
    return;
  }
  const auto& head = client.connection.answer().head();
  const bool is_stream =
      head && head->status == 200 && client.role != Role::kLive && client.role != Role::kMetrics;
  if (!is_stream) {
    client.body += bytes;
  } else if (!bytes.empty() && !TakeStream(client, bytes, now)) {
    return;
  }
  if (!read) return Fault(client, read.error().message);
  if (client.connection.answer().complete()) EndAnswer(client, now);
}

// False: the client has left, or the stream is lost.
bool LoadRun::TakeStream(Client& client, std::string_view bytes, Clock::time_point now) {
  const auto update = client.check.Feed(bytes, completions_);
  if (!update) {
    Fault(client, update.error().message);
    return false;
  }
  for (const int64_t ready : update->ready_ns) {
    result_.chunk_delay.Add(now.time_since_epoch() - std::chrono::nanoseconds(ready));
  }
  if (update->events == 0) return true;
  if (client.role == Role::kStalled) {
    client.connection.StopReading();
    client.asking = false;
    return false;
  }
  if (client.events == 0) {
    result_.first_token.Add(now - client.began);
  } else {
    result_.between_events.Add(now - client.last_event);
  }
  client.last_event = now;
  client.events += update->events;
  result_.events += update->events;
  result_.tokens += update->tokens;
  if (client.leave_after == 0 || client.events < client.leave_after) return true;
  ++result_.disconnected;
  client.connection.Close();
  Finish(client, true);
  return false;
}

void LoadRun::EndAnswer(Client& client, Clock::time_point now) {
  const int status = client.connection.answer().head()->status;
  const bool keeps = client.connection.answer().keep_alive();
  client.asking = false;
  if (client.role == Role::kLive || client.role == Role::kMetrics) {
    EndProbe(client, now);
    if (!keeps) client.connection.Close();
    return;
  }
  ++result_.statuses[status];
  if (client.malformed ? status >= 400 && status < 500 : status == 200) {
    const Status end = client.malformed ? Status{} : client.check.End();
    if (!end) return Fault(client, end.error().message);
    if (!client.malformed && client.check.error_code().empty()) ++result_.complete;
    if (!client.check.error_code().empty()) ++result_.stream_errors[client.check.error_code()];
    if (!keeps) client.connection.Close();
    return Finish(client, true);
  }
  if (status == 429) return EndRefusal(client, now);
  Fault(client, fmt::format("status {}: {}", status, client.body));
}

void LoadRun::EndRefusal(Client& client, Clock::time_point now) {
  if (!client.connection.answer().head()->Find("retry-after")) {
    return Fault(client, "status 429 without Retry-After");
  }
  ++result_.refused;
  result_.refusal.Add(now - client.began);
  Finish(client, false);
}

void LoadRun::EndProbe(Client& client, Clock::time_point now) {
  const int status = client.connection.answer().head()->status;
  if (status != 200) return Fault(client, fmt::format("a probe was answered {}", status));
  if (client.role == Role::kLive) return result_.live.Add(now - client.began);
  const Metrics metrics = ParseMetrics(client.body);
  if (left_ && client.began >= *left_ &&
      SumOf(metrics, "halfbyte:num_requests_running") <= static_cast<double>(unfinished_)) {
    result_.left_released = std::chrono::duration<double>(now - *left_).count();
    left_.reset();
  }
  result_.samples.push_back({.seconds = std::chrono::duration<double>(now - begin_).count(),
                             .resident_bytes = SumOf(metrics, "process_resident_memory_bytes"),
                             .open_files = SumOf(metrics, "process_open_fds"),
                             .running = SumOf(metrics, "halfbyte:num_requests_running")});
}

void LoadRun::LeaveTogether() {
  int leaving = options_.leave_together;
  left_ = Clock::now();
  result_.left_released = -1;
  for (const auto& client : clients_) {
    if (client->role != Role::kStream || !client->asking || leaving-- <= 0) continue;
    ++result_.disconnected;
    Finish(*client, false);
  }
}

// This request is over. The client goes on with the next one, or retires.
void LoadRun::Finish(Client& client, bool stays) {
  client.asking = false;
  if (client.role == Role::kStream && stays && to_start_ > 0) return Ask(client);
  client.connection.Close();
  if (client.role == Role::kStream || client.role == Role::kBurst) --unfinished_;
}

void LoadRun::Fault(Client& client, std::string_view message) {
  ++result_.faults;
  if (result_.first_faults.size() < kMaxFaultsTold) result_.first_faults.emplace_back(message);
  client.connection.Close();
  client.asking = false;
  // Not at once the next request: a server that refuses connections would recurse here.
  if (client.role == Role::kStream || client.role == Role::kBurst) --unfinished_;
}

// The stalled clients keep their connections; the server has to let go of their requests.
double LoadRun::WaitForStalled() {
  while (Clock::now() < begin_ + options_.limit) {
    const auto answer = Fetch(options_.server, "/metrics", "", options_.key);
    if (answer) {
      const Metrics metrics = ParseMetrics(answer->body);
      if (SumOf(metrics, "halfbyte:num_requests_running") == 0) {
        return std::chrono::duration<double>(Clock::now() - begin_).count();
      }
    }
    std::this_thread::sleep_for(milliseconds(100));
  }
  return -1;
}

}  // namespace

Result<LoadResult> RunLoad(const LoadOptions& options) { return LoadRun(options).Run(); }

}  // namespace halfbyte
