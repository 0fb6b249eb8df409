#include "http/http_server.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <future>

#include "base/log.h"
#include "http/connection.h"

namespace halfbyte {
namespace {

using asio::ip::tcp;
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

Result<std::vector<tcp::endpoint>> Resolve(const HttpOptions& options) {
  error_code error;
  const auto address = asio::ip::make_address(options.host, error);
  if (!error) return std::vector<tcp::endpoint>{{address, options.port}};
  asio::io_context context;
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : tcp::resolver(context).resolve(options.host, "", error)) {
    endpoints.emplace_back(entry.endpoint().address(), options.port);
  }
  if (error || endpoints.empty()) {
    return MakeError("--host {}: {}; give an address of this machine, such as 127.0.0.1",
                     options.host, error.message());
  }
  return endpoints;
}

std::string Url(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  return address.is_v6() ? fmt::format("http://[{}]:{}", address.to_string(), endpoint.port())
                         : fmt::format("http://{}:{}", address.to_string(), endpoint.port());
}

// Is the socket file at `path` one that nobody listens to any more?
bool IsLeftOver(const std::string& path) {
  asio::io_context context;
  asio::local::stream_protocol::socket probe(context);
  error_code error;
  probe.connect(path, error);
  return error == asio::error::connection_refused;
}

}  // namespace

class HttpServer::State {
 public:
  State(const HttpOptions& options, HttpHandler* handler)
      : rules_{.options = options,
               .limits = {.head_bytes = options.max_head_bytes,
                          .target_bytes = options.max_target_bytes,
                          .body_bytes = options.max_body_bytes},
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
  Status ListenOnTcp(tcp::endpoint endpoint);
  Status ListenOnUnixSocket(const std::string& path);
  Result<Acceptor> Bound(const asio::generic::stream_protocol::endpoint& endpoint,
                         std::string_view flag);
  Task<void> Accept(std::shared_ptr<Acceptor> acceptor);
  void Welcome(IoThread& thread, Socket socket);
  template <class Visit>
  void VisitConnections(const Visit& visit);

  ConnectionRules rules_;
  std::vector<std::unique_ptr<IoThread>> threads_;  // the first one accepts
  std::vector<std::shared_ptr<Acceptor>> acceptors_;
  std::vector<std::string> addresses_;
  uint16_t port_ = 0;
};

Status HttpServer::State::Listen() {
  const HttpOptions& options = rules_.options;
  if (!options.unix_path.empty()) {
    HB_RETURN_IF_ERROR(ListenOnUnixSocket(options.unix_path));
  } else {
    HB_ASSIGN_OR_RETURN(const auto endpoints, Resolve(options));
    for (const tcp::endpoint& endpoint : endpoints) HB_RETURN_IF_ERROR(ListenOnTcp(endpoint));
  }
  for (const auto& acceptor : acceptors_) {
    asio::co_spawn(threads_[0]->context(), Accept(acceptor), asio::detached);
  }
  return {};
}

Result<Acceptor> HttpServer::State::Bound(const asio::generic::stream_protocol::endpoint& endpoint,
                                          std::string_view flag) {
  Acceptor acceptor(threads_[0]->context());
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(Acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(Acceptor::max_listen_connections, error);
  if (error) return MakeError("{}: {}; choose another one", flag, error.message());
  return acceptor;
}

Status HttpServer::State::ListenOnTcp(tcp::endpoint endpoint) {
  if (endpoint.port() == 0) endpoint.port(port_);  // all addresses of a name have one port
  HB_ASSIGN_OR_RETURN(
      Acceptor acceptor,
      Bound({endpoint.data(), endpoint.size(), IPPROTO_TCP},
            fmt::format("--host {} --port {}", rules_.options.host, rules_.options.port)));
  const auto local = acceptor.local_endpoint();
  std::memcpy(endpoint.data(), local.data(), local.size());
  port_ = endpoint.port();
  addresses_.push_back(Url(endpoint));
  acceptors_.push_back(std::make_shared<Acceptor>(std::move(acceptor)));
  return {};
}

Status HttpServer::State::ListenOnUnixSocket(const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return MakeError("--uds {}: longer than the {} bytes a socket's path can have", path,
                     sizeof(sockaddr_un::sun_path) - 1);
  }
  if (IsLeftOver(path)) ::unlink(path.c_str());
  HB_ASSIGN_OR_RETURN(Acceptor acceptor, Bound(asio::local::stream_protocol::endpoint(path),
                                               fmt::format("--uds {}", path)));
  addresses_.push_back("unix:" + path);
  acceptors_.push_back(std::make_shared<Acceptor>(std::move(acceptor)));
  return {};
}

Task<void> HttpServer::State::Accept(std::shared_ptr<Acceptor> acceptor) {
  Timer pause(threads_[0]->context());
  for (size_t next = 0; acceptor->is_open(); next = (next + 1) % threads_.size()) {
    IoThread& thread = *threads_[next];
    error_code error, ignored;
    Socket socket =
        co_await acceptor->async_accept(thread.context(), asio::redirect_error(kAwait, error));
    if (!error) {
      Welcome(thread, std::move(socket));
    } else if (acceptor->is_open()) {
      spdlog::warn("cannot accept a connection: {}", error.message());
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(kAwait, ignored));
    }
  }
}

void HttpServer::State::Welcome(IoThread& thread, Socket socket) {
  using Welcome = Connection::Welcome;
  const bool full = rules_.open >= rules_.options.max_connections;
  if (full && rules_.turned_away >= kMaxTurnedAway) return;
  std::make_shared<Connection>(rules_, thread, std::move(socket),
                               full ? Welcome::kTurnAway : Welcome::kServe)
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
  if (!acceptors_.empty() && !rules_.options.unix_path.empty()) {
    ::unlink(rules_.options.unix_path.c_str());
  }
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
