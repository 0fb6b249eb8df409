// What the transport costs. Streams of short pieces, fed by one thread as an engine does, read by
// one client thread of the same machine; and short requests one after another.
//
//   cpu_us_per_piece   processor time of feeding, polling and sending, without the client's
//   p99_ms, max_ms     from the end of a step to the client's read
#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "http/http_server.h"
#include "http/raw_client.h"

namespace halfbyte {
namespace {

using std::chrono::steady_clock;

// As long as a chunk of the chat interface.
const std::string kPadding(230, 'x');

double Seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Its pieces carry the time of their step.
struct Feed {
  std::mutex mutex;
  std::string waiting;
  Wake wake;
};

class FeedReply : public HttpReply {
 public:
  explicit FeedReply(std::shared_ptr<Feed> feed) : feed_(std::move(feed)) {}
  Output Poll() override {
    const std::lock_guard lock(feed_->mutex);
    Output output{.bytes = std::exchange(feed_->waiting, "")};
    if (!std::exchange(started_, true)) output.head = HttpHead();
    return output;
  }

 private:
  const std::shared_ptr<Feed> feed_;
  bool started_ = false;
};

class FeedHandler : public HttpHandler {
 public:
  std::optional<HttpResponse> CheckHead(const HttpRequest&) override { return std::nullopt; }
  std::unique_ptr<HttpReply> Handle(HttpRequest, Wake wake) override {
    const auto feed = std::make_shared<Feed>();
    feed->wake = std::move(wake);
    const std::lock_guard lock(mutex_);
    feeds_.push_back(feed);
    return std::make_unique<FeedReply>(feed);
  }
  HttpResponse Answer(const HttpFault&, const HttpRequest&) override { return {}; }
  std::vector<std::shared_ptr<Feed>> feeds() {
    const std::lock_guard lock(mutex_);
    return feeds_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Feed>> feeds_;
};

class FixedHandler : public HttpHandler {
 public:
  std::optional<HttpResponse> CheckHead(const HttpRequest&) override { return std::nullopt; }
  std::unique_ptr<HttpReply> Handle(HttpRequest, Wake) override {
    return ReplyWith({.head = {.fields = {{"Content-Type", "application/json"}}},
                      .body = "{\"status\":\"live\"}"});
  }
  HttpResponse Answer(const HttpFault&, const HttpRequest&) override { return {}; }
};

// Reads all streams until they end; notes the delay of each read.
class Reader {
 public:
  Reader(uint16_t port, int streams) : epoll_(::epoll_create1(0)) {
    for (int i = 0; i < streams; ++i) {
      clients_.emplace_back(port);
      clients_.back().Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
      HB_CHECK(clients_.back().ReadHead(), "no stream");
      epoll_event event{.events = EPOLLIN, .data = {.fd = clients_.back().socket()}};
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, clients_.back().socket(), &event);
    }
  }
  ~Reader() { ::close(epoll_); }

  void Run(const std::atomic<steady_clock::rep>& step_end, const std::atomic<bool>& stop) {
    char bytes[16384];
    epoll_event events[64];
    while (!stop) {
      const int count = ::epoll_wait(epoll_, events, 64, 100);
      for (int i = 0; i < count; ++i) {
        if (::recv(events[i].data.fd, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0) continue;
        const steady_clock::duration delay =
            steady_clock::now().time_since_epoch() - steady_clock::duration(step_end);
        delays_ms.push_back(std::chrono::duration<double, std::milli>(delay).count());
      }
    }
  }

  std::vector<double> delays_ms;

 private:
  const int epoll_;
  std::vector<RawClient> clients_;
};

void Streams(benchmark::State& state) {
  const int streams = static_cast<int>(state.range(0));
  const auto step = std::chrono::milliseconds(state.range(1));
  FeedHandler handler;
  const auto server = *HttpServer::Start({.port = 0}, &handler);
  Reader reader(server->port(), streams);
  std::atomic<steady_clock::rep> step_end{0};
  std::atomic<bool> stop{false};
  std::thread client([&] { reader.Run(step_end, stop); });
  clockid_t client_clock{};
  ::pthread_getcpuclockid(client.native_handle(), &client_clock);

  const auto feeds = handler.feeds();
  const double process = Seconds(CLOCK_PROCESS_CPUTIME_ID), others = Seconds(client_clock);
  auto next = steady_clock::now();
  for (auto _ : state) {
    std::this_thread::sleep_until(next += step);
    step_end = steady_clock::now().time_since_epoch().count();
    for (const auto& feed : feeds) {
      {
        const std::lock_guard lock(feed->mutex);
        feed->waiting += kPadding;
      }
      feed->wake();
    }
  }
  const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID) - process - Seconds(client_clock) + others;
  stop = true;
  client.join();
  std::sort(reader.delays_ms.begin(), reader.delays_ms.end());
  state.counters["cpu_us_per_piece"] =
      1e6 * cpu / (static_cast<double>(state.iterations()) * streams);
  state.counters["p99_ms"] = reader.delays_ms[reader.delays_ms.size() * 99 / 100];
  state.counters["max_ms"] = reader.delays_ms.back();
}
BENCHMARK(Streams)
    ->ArgNames({"streams", "step_ms"})
    ->Args({256, 5})
    ->Args({256, 20})
    ->Args({1024, 50})
    ->Iterations(400)
    ->Unit(benchmark::kMillisecond);

// One client thread, each connection with one request under way.
void Requests(benchmark::State& state) {
  FixedHandler handler;
  const auto server = *HttpServer::Start({.port = 0}, &handler);
  std::vector<RawClient> clients;
  for (int i = 0; i < state.range(0); ++i) clients.emplace_back(server->port());
  int64_t requests = 0;
  for (auto _ : state) {
    for (RawClient& client : clients) {
      client.Send("GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\n\r\n");
    }
    for (RawClient& client : clients) {
      HB_CHECK(client.Read(), "no answer");
      ++requests;
    }
  }
  state.counters["requests_per_s"] =
      benchmark::Counter(static_cast<double>(requests), benchmark::Counter::kIsRate);
}
BENCHMARK(Requests)->ArgName("connections")->Arg(1)->Arg(64)->UseRealTime();

}  // namespace
}  // namespace halfbyte

BENCHMARK_MAIN();
