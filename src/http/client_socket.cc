#include "http/client_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string_view>

namespace halfbyte {
namespace {

// What the kernel may hold for a client that reads slowly (it doubles the number).
constexpr int kSendBufferBytes = 128 << 10;

}  // namespace

void SetOptionsOfClients(int listening) {
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(listening, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_SNDBUF, kSendBufferBytes);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

std::string PeerName(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "gone";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(v4.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(v6.sin6_port));
  }
  return "unix";
}

bool InviteBody(int socket) {
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  const ssize_t sent =
      ::send(socket, kContinue.data(), kContinue.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(kContinue.size());
}

bool HasHungUp(int socket) {
  pollfd state = {.fd = socket, .events = POLLRDHUP};
  return ::poll(&state, 1, 0) > 0;
}

}  // namespace halfbyte
