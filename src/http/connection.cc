#include "http/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <new>

#include "base/check.h"
#include "http/client_socket.h"

namespace halfbyte {
namespace {

using boost::system::error_code;
using std::chrono::steady_clock;

constexpr size_t kHeadRoom = 4 << 10;     // bytes read at once, of heads and early ones
constexpr size_t kBodyRoom = 64 << 10;    // and of bodies
constexpr size_t kEarlyBytes = 16 << 10;  // of next requests that are read while a reply runs

// What a request gets that there is no memory for, not even for an answer.
constexpr std::string_view kOutOfMemory =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Connection: close\r\nContent-Length: 104\r\n\r\n"
    "{\"error\":{\"message\":\"no memory is left for this request\",\"type\":\"server_error\","
    "\"code\":\"out_of_memory\"}}\n";

}  // namespace

Connection::Connection(ConnectionRules& rules, IoThread& thread, Socket socket, std::string peer,
                       Welcome welcome)
    : rules_(rules),
      thread_(thread),
      socket_(std::move(socket)),
      welcome_(welcome),
      peer_(std::move(peer)),
      client_(ClientAddress(peer_)),
      wake_target_(std::make_shared<WakeQueue::Target>(this)),
      taking_(steady_clock::now(), rules.options.write_timeout, rules.options.min_rate) {
  ++(welcome_ == Welcome::kServe ? rules_.open : rules_.turned_away);
}

Connection::~Connection() {
  if (welcome_ == Welcome::kServe) {
    rules_.connections->Give(client_, 1);
    --rules_.open;
  } else {
    --rules_.turned_away;
  }
}

void Connection::Start() {
  asio::co_spawn(
      thread_.context(), [self = shared_from_this()] { return self->Run(); }, EndProgramIfThrown);
}

Task<void> Connection::Run() {
  const auto self = shared_from_this();
  thread_.Add(self);
  Next next = Next::kServe;
  while (next == Next::kServe && !rules_.stopping) {
    try {
      if (welcome_ == Welcome::kServe) {
        next = co_await ServeRequest();
        // Who has sent many requests at once waits for its turn with each.
        if (!buffer_.data().empty()) co_await asio::post(thread_.context(), kAwait);
      } else {
        next = co_await TurnAway();
      }
    } catch (const std::bad_alloc&) {
      next = GiveUpForMemory();
    }
  }
  try {
    if (next == Next::kLinger) co_await Linger();
  } catch (const std::bad_alloc&) {  // the client may lose the answer
  }
  error_code ignored;
  socket_.close(ignored);
  wake_target_->connection = nullptr;
  thread_.Remove(self);
}

Task<Connection::Next> Connection::TurnAway() {
  RequestParser nothing(rules_.limits);
  const std::string who =
      welcome_ == Welcome::kServerIsFull
          ? fmt::format("the server has {} connections", rules_.options.max_connections)
          : fmt::format("{} has as many connections as one client may have", client_);
  const HttpFault fault = {503, "too_many_connections", who + " already; try again later"};
  co_return co_await Refuse(fault, nothing);
}

Task<Connection::Next> Connection::ServeRequest() {
  buffer_.Release();
  RequestParser parser(rules_.limits);
  HttpRequest& request = parser.request();
  request.peer = peer_;
  request.body_claim = std::make_shared<BodyClaim>(rules_.bodies, client_);
  deadline_ = steady_clock::now() + rules_.options.idle_timeout;
  const std::optional<Next> after_head = co_await ReadPast(parser, RequestParser::State::kHead);
  if (after_head) co_return *after_head;
  request.arrival = steady_clock::now();
  AnswerFraming framing = {.request_id = request.id,
                           .http_1_1 = parser.http_1_1(),
                           .head_only = request.method == "HEAD",
                           .keep_alive = parser.keep_alive()};
  if (auto refusal = rules_.handler->CheckHead(request)) {
    framing.keep_alive &= !request.has_body;
    co_return co_await Answer(ReplyWith(*std::move(refusal)), std::move(framing));
  }
  const std::optional<Next> after_body = co_await ReadPast(parser, RequestParser::State::kBody);
  if (after_body) co_return *after_body;
  request.arrival = steady_clock::now();
  auto reply = rules_.handler->Handle(std::move(request), thread_.wakes().MakeWake(wake_target_));
  HB_CHECK(reply != nullptr, "a handler gave no reply");
  co_return co_await Answer(std::move(reply), std::move(framing));
}

// Reads until the parser leaves `state`. Without a value it got further; else the request has come
// to an end here.
Task<std::optional<Connection::Next>> Connection::ReadPast(RequestParser& parser,
                                                           RequestParser::State state) {
  const HttpOptions& options = rules_.options;
  const bool in_body = state == RequestParser::State::kBody;
  RateClock coming(steady_clock::now(), options.body_timeout, options.min_rate);
  int64_t come = 0;  // of the body
  bool invites_body = in_body && parser.expects_continue() && buffer_.data().empty();
  HttpFault fault;
  while (true) {
    const bool started = parser.started();
    buffer_.Consume(parser.Push(buffer_.data()));
    if (parser.state() == RequestParser::State::kFault) {
      fault = parser.fault();
      break;
    }
    if (!parser.request().body_claim->Cover(std::ssize(parser.request().body))) {
      fault = {503, "too_many_bodies",
               "the bodies of requests fill the memory for them, or a client's half of it"};
      break;
    }
    if (parser.state() != state) co_return std::nullopt;
    if (in_body) {
      const int64_t size = std::ssize(parser.request().body);
      coming.Count(size - std::exchange(come, size), steady_clock::now());
      deadline_ = coming.deadline();
    }
    if (parser.started() && !started) deadline_ = steady_clock::now() + options.head_timeout;
    if (std::exchange(invites_body, false) && !InviteBody(socket_.native_handle())) {
      co_return Next::kClose;
    }
    const size_t count = co_await Read(in_body ? kBodyRoom : kHeadRoom);
    if (rules_.stopping) co_return Next::kClose;
    if (count > 0) continue;
    if (!parser.started()) co_return Next::kClose;
    if (timed_out_) {
      fault = {408, "request_timeout", "the request did not come to its end in time"};
    } else {
      fault = {400, "bad_request", "the request ends too early"};
    }
    break;
  }
  co_return co_await Refuse(fault, parser);
}

// 0: nothing more comes, or deadline_ has passed, or the server stops.
Task<size_t> Connection::Read(size_t room) {
  if (rules_.stopping && !answering()) co_return 0;
  timed_out_ = false;
  error_code error;
  const std::span<char> free = buffer_.Room(room);
  const size_t count = co_await socket_.async_read_some(asio::buffer(free.data(), free.size()),
                                                        asio::redirect_error(kAwait, error));
  buffer_.Commit(count);
  thread_.DeliverWakes();
  co_return count;
}

Task<Connection::Next> Connection::Refuse(const HttpFault& fault, RequestParser& parser) {
  const HttpRequest& request = parser.request();
  AnswerFraming framing = {.request_id = request.id,
                           .http_1_1 = parser.http_1_1(),
                           .head_only = request.method == "HEAD",
                           .keep_alive = false};
  auto reply = ReplyWith(rules_.handler->Answer(fault, request));
  co_return co_await Answer(std::move(reply), std::move(framing));
}

// The coroutine's part of an answer: to read early bytes and to see the client leave.
Task<Connection::Next> Connection::Answer(std::unique_ptr<HttpReply> reply, AnswerFraming framing) {
  woken_ = false;
  reads_ = true;
  writer_.emplace(socket_.native_handle(), std::move(reply), std::move(framing));
  Pump();
  while (answering()) {
    if (buffer_.data().size() >= kEarlyBytes) reads_ = false;
    if (reads_) {
      const size_t count = co_await Read(kHeadRoom);
      if (count > 0 || !answering()) continue;
      reads_ = false;
      // Who only stopped sending may still wait for an answer that is complete.
      if (!writer_->complete()) Abandon();
    } else {
      error_code ignored;
      co_await socket_.async_wait(Socket::wait_error, asio::redirect_error(kAwait, ignored));
      if (answering()) Abandon();
    }
  }
  const bool sent = writer_ && writer_->state() == AnswerWriter::State::kDone;
  const bool again = sent && writer_->keep_alive();
  writer_.reset();
  co_return again ? Next::kServe : sent ? Next::kLinger : Next::kClose;
}

// Closing while the client still sends would take the answer from it: first it is told that
// nothing more comes, then what it sends is thrown away.
Task<void> Connection::Linger() {
  deadline_ = steady_clock::now() + rules_.options.linger_timeout;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  size_t count = 0;
  do {
    buffer_.Consume(buffer_.data().size());
    count = co_await Read(kBodyRoom);
  } while (count > 0 && steady_clock::now() < deadline_);
}

bool Connection::answering() const {
  return writer_ && (writer_->state() == AnswerWriter::State::kWaiting ||
                     writer_->state() == AnswerWriter::State::kBlocked);
}

// A request that memory is short for is answered, if nothing of its answer has been sent, and ends.
Connection::Next Connection::GiveUpForMemory() {
  const bool unanswered = !writer_ || !writer_->begun();
  writer_.reset();
  buffer_.Release();
  if (!unanswered) return Next::kClose;
  ::send(socket_.native_handle(), kOutOfMemory.data(), kOutOfMemory.size(),
         MSG_NOSIGNAL | MSG_DONTWAIT);
  return Next::kLinger;
}

// Runs a part of an answer that is not the coroutine's.
template <class Work>
void Connection::Pumping(const Work& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    GiveUpForMemory();
    socket_.cancel();  // the coroutine waits in vain for the client
  }
}

void Connection::Pump() {
  Pumping([this] { PumpOnce(); });
}

void Connection::PumpOnce() {
  woken_ = false;
  next_poll_ = steady_clock::now() + rules_.options.poll_interval;
  writer_->Poll(thread_.date());
  // All before was taken.
  taking_ = RateClock(steady_clock::now(), rules_.options.write_timeout, rules_.options.min_rate);
  taken_ = writer_->sent();
  AfterSending();
}

void Connection::AfterSending() {
  if (!answering()) {
    socket_.cancel();  // the coroutine waits in vain for the client
  } else if (writer_->state() == AnswerWriter::State::kBlocked) {
    const int64_t sent = writer_->sent();
    taking_.Count(sent - std::exchange(taken_, sent), steady_clock::now());
    deadline_ = taking_.deadline();
    socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& error) {
      if (!error) self->OnWritable();
    });
  }
}

void Connection::OnWritable() {
  if (!answering()) return;
  Pumping([this] { writer_->Continue(); });
  if (woken_ && writer_ && writer_->state() == AnswerWriter::State::kWaiting) {
    Pump();
  } else {
    AfterSending();
  }
}

void Connection::OnWake() {
  if (!answering()) return;
  if (writer_->state() == AnswerWriter::State::kBlocked) {
    woken_ = true;
  } else {
    Pump();
  }
}

void Connection::OnTick(TimePoint now) {
  if (!answering()) {
    if (now >= deadline_) {
      timed_out_ = true;
      socket_.cancel();
    }
  } else if (writer_->state() == AnswerWriter::State::kBlocked) {
    if (now >= deadline_) Abandon();
  } else if (!reads_ && HasHungUp(socket_.native_handle())) {
    Abandon();
  } else if (now >= next_poll_) {
    Pump();
  }
}

void Connection::StopReading() {
  if (!answering()) socket_.cancel();
}

bool Connection::Abort() {
  const bool was_answering = answering();
  Abandon();
  return was_answering;
}

void Connection::Abandon() {
  writer_.reset();
  socket_.cancel();
}

}  // namespace halfbyte
