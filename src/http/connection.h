// One client: a coroutine reads its requests one after another; while a reply runs it goes on
// reading, so that it sees the client leave, and a pump beside it, driven by wakes, ticks and the
// socket taking bytes, sends what the reply gives. Internal to src/http: it includes Asio.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "http/answer_writer.h"
#include "http/body_claim.h"
#include "http/http_server.h"
#include "http/io_thread.h"
#include "http/rate_clock.h"
#include "http/read_buffer.h"
#include "http/request_parser.h"

namespace halfbyte {

// What all connections of a server share.
struct ConnectionRules {
  HttpOptions options;
  RequestLimits limits;
  std::shared_ptr<ClientShares> bodies;       // bytes
  std::shared_ptr<ClientShares> connections;  // being served
  HttpHandler* handler;
  std::atomic<bool> stopping = false;    // nobody is served any more
  std::atomic<int64_t> open = 0;         // connections being served
  std::atomic<int64_t> turned_away = 0;  // those beyond max_connections, being told so
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // One too many, of all or of its client's, gets 503. Counted in `rules` as long as it lives; one
  // to be served has taken its share of `connections`, and gives it back.
  enum class Welcome { kServe, kServerIsFull, kClientHasMany };
  Connection(ConnectionRules& rules, IoThread& thread, Socket socket, std::string peer,
             Welcome welcome);
  ~Connection();

  // From any thread: begins to serve on the connection's own one.
  void Start();

  // All below on the connection's thread.
  void OnWake();
  void OnTick(TimePoint now);
  // The server stops: closes unless a reply is running; then after that.
  void StopReading();
  // Closes at once. True if a reply was running.
  bool Abort();

 private:
  enum class Next { kServe, kLinger, kClose };

  Task<void> Run();
  Task<Next> ServeRequest();
  Task<Next> TurnAway();
  Task<std::optional<Next>> ReadPast(RequestParser& parser, RequestParser::State state);
  Task<size_t> Read(size_t room);
  Task<Next> Refuse(const HttpFault& fault, RequestParser& parser);
  Task<Next> Answer(std::unique_ptr<HttpReply> reply, AnswerFraming framing);
  Task<void> Linger();

  bool answering() const;
  Next GiveUpForMemory();
  template <class Work>
  void Pumping(const Work& work);
  void Pump();
  void PumpOnce();
  void AfterSending();
  void OnWritable();
  void Abandon();

  ConnectionRules& rules_;
  IoThread& thread_;
  Socket socket_;
  const Welcome welcome_;
  const std::string peer_;
  const std::string client_;  // its address
  const std::shared_ptr<WakeQueue::Target> wake_target_;
  ReadBuffer buffer_;
  TimePoint deadline_;      // of reading, or of a write that is blocked
  bool timed_out_ = false;  // the last Read ended by it
  RateClock taking_;        // of what the client takes while a write is blocked
  int64_t taken_ = 0;       // bytes of the answer that it has counted

  std::optional<AnswerWriter> writer_;
  bool woken_ = false;  // while the socket took nothing
  bool reads_ = true;   // false: early bytes fill the buffer, or the client sends no more
  TimePoint next_poll_;
};

}  // namespace halfbyte
