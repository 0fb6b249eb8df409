// A client of raw bytes, for tests and benches of the transport: this machine only; gives up after
// ten seconds.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "http/http.h"

namespace halfbyte {

class RawClient {
 public:
  // `from`: another address of this machine to come from, such as "127.0.0.2".
  explicit RawClient(uint16_t port, int receive_buffer = 0, const char* from = nullptr)
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    SetPatience();
    if (from != nullptr) {
      sockaddr_in own{.sin_family = AF_INET};
      ::inet_pton(AF_INET, from, &own.sin_addr);
      ::bind(socket_, reinterpret_cast<sockaddr*>(&own), sizeof(own));
    }
    if (receive_buffer > 0) {
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  explicit RawClient(const std::string& unix_path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    SetPatience();
    sockaddr_un address{.sun_family = AF_UNIX};
    unix_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient(RawClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        connected_(other.connected_),
        read_(std::move(other.read_)) {}

  bool connected() const { return connected_; }
  int socket() const { return socket_; }

  // False: the server has gone.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void HalfClose() { ::shutdown(socket_, SHUT_WR); }
  void Close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void Reset() {  // closes with RST
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }

  struct Response {
    int status = 0;
    HttpFields fields;
    std::string body;
    std::string Field(std::string_view name) const {
      return std::string(fields.Find(name).value_or(""));
    }
  };
  // One answer; absent if the connection ends before it is complete. A length-less body that is not
  // chunked goes on until the end.
  std::optional<Response> Read(bool has_body = true) {
    auto response = ReadHead();
    if (!response || !has_body) return response;
    if (response->Field("Transfer-Encoding") == "chunked") {
      while (true) {
        const auto chunk = ReadChunk();
        if (!chunk) return std::nullopt;
        if (chunk->empty()) return response;
        response->body += *chunk;
      }
    }
    if (const auto length = response->fields.Find("Content-Length")) {
      const auto body = Take(static_cast<size_t>(std::atoll(std::string(*length).c_str())));
      if (!body) return std::nullopt;
      response->body = *body;
    } else {
      response->body = ReadToEnd();
    }
    return response;
  }
  std::optional<Response> Ask(std::string_view request) {
    Send(request);
    return Read();
  }

  std::optional<Response> ReadHead() {
    const auto head = TakeThrough("\r\n\r\n");
    if (!head || !head->starts_with("HTTP/1.1 ")) return std::nullopt;
    Response response;
    response.status = std::atoi(head->c_str() + 9);
    for (size_t at = head->find("\r\n") + 2; at + 2 < head->size();) {
      const size_t colon = head->find(": ", at), end = head->find("\r\n", at);
      response.fields.Add(head->substr(at, colon - at), head->substr(colon + 2, end - colon - 2));
      at = end + 2;
    }
    return response;
  }
  // Empty: the last one.
  std::optional<std::string> ReadChunk() {
    const auto size = TakeThrough("\r\n");
    if (!size) return std::nullopt;
    auto chunk = Take(std::strtoull(size->c_str(), nullptr, 16) + 2);
    if (chunk) chunk->resize(chunk->size() - 2);
    return chunk;
  }
  std::string ReadToEnd() {
    while (ReadMore()) {
    }
    return std::exchange(read_, "");
  }
  // Has the server closed, with everything read?
  bool AtEnd() { return read_.empty() && !ReadMore(); }

 private:
  void SetPatience() {
    const timeval limit{.tv_sec = 10};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    const int yes = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  }
  bool ReadMore() {
    char bytes[4096];
    const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
    if (count > 0) read_.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }
  std::optional<std::string> TakeThrough(std::string_view end) {
    size_t at;
    while ((at = read_.find(end)) == read_.npos) {
      if (!ReadMore()) return std::nullopt;
    }
    return Take(at + end.size());
  }
  std::optional<std::string> Take(size_t size) {
    while (read_.size() < size) {
      if (!ReadMore()) return std::nullopt;
    }
    std::string taken = read_.substr(0, size);
    read_.erase(0, size);
    return taken;
  }

  int socket_;
  bool connected_ = false;
  std::string read_;  // and not yet taken
};

}  // namespace halfbyte
