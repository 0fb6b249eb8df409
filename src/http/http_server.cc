#include "http/http_server.h"

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <future>
#include <new>

#include "base/log.h"
#include "base/temporary_path.h"
#include "http/client_socket.h"
#include "http/connection.h"
#include "http/listener.h"

namespace halfbyte {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol, Executor>;

// Connections beyond max_connections that are told so at the same time; more are just closed.
constexpr int64_t kMaxTurnedAway = 256;
constexpr milliseconds kAcceptPause{100};  // after an error such as too many open files

milliseconds TickOf(const HttpOptions& options) {
  const milliseconds shortest =
      std::min({options.head_timeout, options.body_timeout, options.idle_timeout,
                options.write_timeout, options.linger_timeout, options.poll_interval});
  return std::clamp(shortest / 4, milliseconds(5), milliseconds(250));
}

std::shared_ptr<ClientShares> ShareOut(int64_t all, int64_t each, const HttpOptions& options) {
  return std::make_shared<ClientShares>(all, options.unix_path.empty() ? each : all);
}

}  // namespace

class HttpServer::State {
 public:
  State(const HttpOptions& options, HttpHandler* handler)
      : rules_{.options = options,
               .limits = {.head_bytes = options.max_head_bytes,
                          .target_bytes = options.max_target_bytes,
                          .body_bytes = options.max_body_bytes},
               .bodies = ShareOut(std::max(options.max_bodies_bytes, options.max_body_bytes),
                                  std::max(options.max_bodies_bytes / 2, options.max_body_bytes),
                                  options),
               .connections = ShareOut(options.max_connections,
                                       options.max_connections_per_client > 0
                                           ? options.max_connections_per_client
                                           : std::max<int64_t>(options.max_connections / 2, 64),
                                       options),
               .handler = handler} {
    for (int i = 0; i < std::max(1, options.io_threads); ++i) {
      threads_.push_back(std::make_unique<IoThread>(TickOf(options)));
    }
  }
  ~State() { Stop(steady_clock::now()); }

  Status Listen();
  int64_t Stop(steady_clock::time_point deadline);

  const std::vector<std::string>& addresses() const { return addresses_; }
  uint16_t port() const { return port_; }
  int64_t connections() const { return rules_.open; }

 private:
  Task<void> Accept(std::shared_ptr<Acceptor> acceptor);
  void SayNotAccepted(const std::string& why);
  void Receive(IoThread& thread, Socket socket);
  template <class Visit>
  void VisitConnections(const Visit& visit);

  ConnectionRules rules_;
  std::vector<std::unique_ptr<IoThread>> threads_;  // the first one accepts
  std::vector<std::shared_ptr<Acceptor>> acceptors_;
  TemporaryPath unix_file_;
  std::vector<std::string> addresses_;
  int64_t not_accepted_ = 0;                         // of the first thread
  std::chrono::steady_clock::time_point next_told_;  // likewise
  uint16_t port_ = 0;
};

Status HttpServer::State::Listen() {
  const HttpOptions& options = rules_.options;
  std::vector<Listener> listeners;
  if (options.unix_path.empty()) {
    HB_ASSIGN_OR_RETURN(listeners, ListenOnTcp(options.host, options.port));
  } else {
    HB_ASSIGN_OR_RETURN(Listener listener, ListenOnUnixSocket(options.unix_path));
    unix_file_ = TemporaryPath(options.unix_path);
    listeners.push_back(std::move(listener));
  }
  port_ = listeners[0].port();
  for (Listener& listener : listeners) {
    addresses_.push_back(listener.url());
    const asio::generic::stream_protocol protocol(listener.family(), 0);
    acceptors_.push_back(
        std::make_shared<Acceptor>(threads_[0]->context(), protocol, listener.Release()));
    asio::co_spawn(threads_[0]->context(), Accept(acceptors_.back()), EndProgramIfThrown);
  }
  return {};
}

Task<void> HttpServer::State::Accept(std::shared_ptr<Acceptor> acceptor) {
  Timer pause(threads_[0]->context());
  for (size_t next = 0; acceptor->is_open(); next = (next + 1) % threads_.size()) {
    IoThread& thread = *threads_[next];
    error_code error, ignored;
    try {
      Socket socket =
          co_await acceptor->async_accept(thread.context(), asio::redirect_error(kAwait, error));
      threads_[0]->DeliverWakes();
      if (!error) {
        Receive(thread, std::move(socket));
      } else if (acceptor->is_open()) {
        SayNotAccepted(error.message());
        pause.expires_after(kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(kAwait, ignored));
      }
    } catch (const std::bad_alloc&) {  // the connection is closed; the next may find memory
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
}

// Each try fails while files are short: the first is told, then once a minute how many.
void HttpServer::State::SayNotAccepted(const std::string& why) {
  const auto now = std::chrono::steady_clock::now();
  ++not_accepted_;
  if (now < next_told_) return;
  next_told_ = now + std::chrono::minutes(1);
  spdlog::warn("cannot accept a connection: {} ({} tries so far)", why, not_accepted_);
}

void HttpServer::State::Receive(IoThread& thread, Socket socket) {
  using Welcome = Connection::Welcome;
  std::string peer = PeerName(socket.native_handle());
  Welcome welcome = Welcome::kServe;
  if (!rules_.connections->Take(ClientAddress(peer), 1)) {
    if (rules_.turned_away >= kMaxTurnedAway) return;
    welcome = rules_.connections->AnyLeft() ? Welcome::kClientHasMany : Welcome::kServerIsFull;
  }
  std::make_shared<Connection>(rules_, thread, std::move(socket), std::move(peer), welcome)
      ->Start();
}

// Calls visit(connection) for each, on its thread, and waits for that.
template <class Visit>
void HttpServer::State::VisitConnections(const Visit& visit) {
  for (const auto& thread : threads_) {
    std::promise<void> visited;
    asio::post(thread->context(), [&] {
      for (const auto& connection : thread->connections()) visit(*connection);
      visited.set_value();
    });
    visited.get_future().wait();
  }
}

int64_t HttpServer::State::Stop(steady_clock::time_point deadline) {
  if (threads_.empty()) return 0;
  rules_.stopping = true;
  std::promise<void> closed;
  asio::post(threads_[0]->context(), [&] {
    error_code ignored;
    for (const auto& acceptor : acceptors_) acceptor->close(ignored);
    closed.set_value();
  });
  closed.get_future().wait();
  unix_file_.Remove();
  VisitConnections([](Connection& connection) { connection.StopReading(); });
  while (rules_.open + rules_.turned_away > 0 && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  std::atomic<int64_t> aborted = 0;
  VisitConnections([&](Connection& connection) { aborted += connection.Abort() ? 1 : 0; });
  for (const auto& thread : threads_) thread->Join();
  acceptors_.clear();
  threads_.clear();
  return aborted;
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                      HttpHandler* handler) {
  auto state = std::make_unique<State>(options, handler);
  HB_RETURN_IF_ERROR(state->Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

int64_t HttpServer::Stop(steady_clock::time_point deadline) { return state_->Stop(deadline); }
const std::vector<std::string>& HttpServer::addresses() const { return state_->addresses(); }
uint16_t HttpServer::port() const { return state_->port(); }
int64_t HttpServer::connections() const { return state_->connections(); }

}  // namespace halfbyte
