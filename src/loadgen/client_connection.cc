#include "loadgen/client_connection.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace halfbyte {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kSmallWindow = 4096;

}  // namespace

Status ClientConnection::Begin(const sockaddr_in& server, std::string request, bool small_window) {
  request_ = std::move(request);
  sent_ = 0;
  reader_ = {};
  if (!open()) return Connect(server, small_window);
  return SendWaiting();
}

Status ClientConnection::Connect(const sockaddr_in& server, bool small_window) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return MakeError("no socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (small_window) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &kSmallWindow, sizeof(kSmallWindow));
  const linger reset{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&server), sizeof(server)) != 0 &&
      errno != EINPROGRESS) {
    return MakeError("cannot connect: {}", std::strerror(errno));
  }
  Watch(EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
  return {};
}

void ClientConnection::Watch(uint32_t events, int operation) {
  epoll_event event{.events = events, .data = {.ptr = tag_}};
  epoll_ctl(epoll_, operation, fd_, &event);
}

Status ClientConnection::SendWaiting() {
  const ssize_t count =
      send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0 && errno != EAGAIN) return MakeError("cannot send: {}", std::strerror(errno));
  if (count > 0) sent_ += static_cast<size_t>(count);
  Watch(sent_ < request_.size() ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
  return {};
}

Status ClientConnection::Continue(uint32_t events, std::string& body) {
  if ((events & EPOLLOUT) != 0 && (events & EPOLLERR) == 0) HB_RETURN_IF_ERROR(SendWaiting());
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return {};
  char buffer[kReadBytes];
  const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
  if (count > 0) return reader_.Feed(std::string_view(buffer, static_cast<size_t>(count)), body);
  if (count == 0) return reader_.End();
  if (errno == EAGAIN) return {};
  return MakeError("the connection broke: {}", std::strerror(errno));
}

void ClientConnection::StopReading() { Watch(0, EPOLL_CTL_MOD); }

void ClientConnection::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

}  // namespace halfbyte
