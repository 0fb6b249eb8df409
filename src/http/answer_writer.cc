#include "http/answer_writer.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace halfbyte {
namespace {

constexpr std::pair<int, std::string_view> kReasons[] = {
    {200, "OK"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
};

// May be empty: clients go by the number.
std::string_view Reason(int status) {
  for (const auto& [known, reason] : kReasons) {
    if (known == status) return reason;
  }
  return "";
}

void AppendField(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ");
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    head += (byte < 0x20 && c != '\t') || byte == 0x7f ? '?' : c;
  }
  head.append("\r\n");
}

iovec Piece(std::string_view bytes) { return {const_cast<char*>(bytes.data()), bytes.size()}; }

}  // namespace

AnswerWriter::AnswerWriter(int socket, std::unique_ptr<HttpReply> reply, AnswerFraming framing)
    : socket_(socket), reply_(std::move(reply)), framing_(std::move(framing)) {}

AnswerWriter::State AnswerWriter::Poll(std::string_view date) {
  HB_CHECK(state_ == State::kWaiting, "polled in state {}", static_cast<int>(state_));
  const HttpReply::Output output = reply_->Poll();
  prefix_.clear();
  if (!started_ && output.head) StartAnswer(output, date);
  HB_CHECK(started_ || (output.bytes.empty() && !output.done), "a reply's bytes before its head");
  last_ = output.done || !has_body_;
  const std::string_view body = has_body_ ? std::string_view(output.bytes) : std::string_view();
  std::string_view suffix;
  if (chunked_) {
    if (!body.empty()) fmt::format_to(std::back_inserter(prefix_), "{:x}\r\n", body.size());
    suffix = body.empty() ? (last_ ? "0\r\n\r\n" : "") : (last_ ? "\r\n0\r\n\r\n" : "\r\n");
  }
  if (last_) reply_.reset();
  std::array<iovec, 3> pieces = {Piece(prefix_), Piece(body), Piece(suffix)};
  Send(pieces);
  unsent_from_ = 0;
  unsent_.clear();
  for (const iovec& left : pieces) {
    unsent_.append(static_cast<const char*>(left.iov_base), left.iov_len);
  }
  return state_;
}

AnswerWriter::State AnswerWriter::Continue() {
  HB_CHECK(state_ == State::kBlocked, "continued in state {}", static_cast<int>(state_));
  std::array<iovec, 1> pieces = {Piece(std::string_view(unsent_).substr(unsent_from_))};
  Send(pieces);
  unsent_from_ = unsent_.size() - pieces[0].iov_len;
  return state_;
}

void AnswerWriter::StartAnswer(const HttpReply::Output& output, std::string_view date) {
  const HttpHead& head = *output.head;
  started_ = true;
  const bool bodiless = head.status == 204 || head.status == 304;
  has_body_ = !framing_.head_only && !bodiless;
  const bool known_length = output.done;
  if (head.close || (!known_length && !bodiless && !framing_.http_1_1)) framing_.keep_alive = false;
  fmt::format_to(std::back_inserter(prefix_), "HTTP/1.1 {} {}\r\n", head.status,
                 Reason(head.status));
  for (const auto& [name, value] : head.fields) AppendField(prefix_, name, value);
  AppendField(prefix_, "Date", date);
  AppendField(prefix_, "x-request-id", framing_.request_id);
  if (bodiless) {
    // says so by its status
  } else if (known_length) {
    AppendField(prefix_, "Content-Length", fmt::to_string(output.bytes.size()));
  } else if (framing_.http_1_1) {
    AppendField(prefix_, "Transfer-Encoding", "chunked");
    chunked_ = has_body_;
  }
  if (!framing_.keep_alive) {
    AppendField(prefix_, "Connection", "close");
  } else if (!framing_.http_1_1) {
    AppendField(prefix_, "Connection", "keep-alive");
  }
  prefix_.append("\r\n");
}

// Leaves in `pieces` what the socket did not take.
void AnswerWriter::Send(std::span<iovec> pieces) {
  size_t left = 0;
  for (const iovec& piece : pieces) left += piece.iov_len;
  while (left > 0) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
      state_ = full ? State::kBlocked : State::kBroken;
      return;
    }
    sent_ += sent;
    left -= static_cast<size_t>(sent);
    auto passed = static_cast<size_t>(sent);
    for (iovec& piece : pieces) {
      const size_t part = std::min(passed, piece.iov_len);
      piece.iov_base = static_cast<char*>(piece.iov_base) + part;
      piece.iov_len -= part;
      passed -= part;
    }
  }
  state_ = last_ ? State::kDone : State::kWaiting;
}

}  // namespace halfbyte
