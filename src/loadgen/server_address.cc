#include "loadgen/server_address.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace halfbyte {
namespace {

// A socket that is closed at the end.
struct Socket {
  explicit Socket(int opened) : fd(opened) {}
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  const int fd;
};

tl::unexpected<Error> Failure(const ServerAddress& server, std::string_view what) {
  return MakeError("{}: {}: {}", server.Url(), what, std::strerror(errno));
}

}  // namespace

Result<ServerAddress> ServerAddress::OfUrl(std::string_view url) {
  std::string_view rest = url;
  constexpr std::string_view kScheme = "http://";
  if (!rest.starts_with(kScheme)) return MakeError("{} does not start with http://", url);
  rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.find(':');
  if (colon == std::string_view::npos) return MakeError("{} names no port", url);
  ServerAddress address;
  address.host = rest.substr(0, colon);
  if (address.host == "localhost") address.host = "127.0.0.1";
  const std::string_view port = rest.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port == 0) {
    return MakeError("{}: {} is no port", url, port);
  }
  in_addr parsed{};
  if (inet_pton(AF_INET, address.host.c_str(), &parsed) != 1 ||
      (ntohl(parsed.s_addr) >> 24) != 127) {
    return MakeError("{}: only servers of this machine are loaded (127.0.0.1, localhost)", url);
  }
  return address;
}

std::string ServerAddress::Url() const { return fmt::format("http://{}:{}", host, port); }

sockaddr_in ServerAddress::SocketAddress() const {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

std::string RequestText(const ServerAddress& server, std::string_view path, std::string_view body,
                        std::string_view key) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\n", body.empty() ? "GET" : "POST",
                                 path, server.host, server.port);
  if (!key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", key);
  if (body.empty()) return text + "\r\n";
  return text + fmt::format(
                    "Content-Type: application/json\r\nContent-Length: {}\r\n"
                    "x-halfbyte-timing: on\r\n\r\n{}",
                    body.size(), body);
}

Result<HttpAnswer> Fetch(const ServerAddress& server, std::string_view path, std::string_view body,
                         std::string_view key, std::chrono::milliseconds timeout) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd < 0) return Failure(server, "no socket");
  const timeval limit{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  setsockopt(socket.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const sockaddr_in address = server.SocketAddress();
  if (connect(socket.fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failure(server, "cannot connect");
  }
  const std::string text = RequestText(server, path, body, key);
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(socket.fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0) return Failure(server, "cannot send");
    sent += static_cast<size_t>(count);
  }
  HttpAnswerReader reader;
  HttpAnswer answer;
  char buffer[64 * 1024];
  while (!reader.complete()) {
    const ssize_t count = recv(socket.fd, buffer, sizeof(buffer), 0);
    if (count < 0) return Failure(server, fmt::format("{}: no answer", path));
    const std::string_view bytes(buffer, static_cast<size_t>(count));
    const Status taken = count == 0 ? reader.End() : reader.Feed(bytes, answer.body);
    if (!taken) return MakeError("{}{}: {}", server.Url(), path, taken.error().message);
  }
  answer.head = *reader.head();
  return answer;
}

}  // namespace halfbyte
