// Sockets that listen, on TCP or a unix socket; they do not block.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace halfbyte {

class Listener {
 public:
  Listener(int socket, std::string url) : socket_(socket), url_(std::move(url)) {}
  ~Listener();  // closes it, unless it was released
  Listener(Listener&& other) noexcept : socket_(other.Release()), url_(std::move(other.url_)) {}

  const std::string& url() const { return url_; }  // "http://[::1]:8000", "unix:/run/hb.sock"
  uint16_t port() const;                           // the real one; 0 for a unix socket
  int family() const;                              // AF_INET, AF_INET6, AF_UNIX
  int Release() { return std::exchange(socket_, -1); }

 private:
  int socket_;
  std::string url_;
};

// All addresses of `host`, on one port; port 0: any.
// Errors: the name cannot be found, an address cannot be bound; they name the flags.
Result<std::vector<Listener>> ListenOnTcp(const std::string& host, uint16_t port);

// A socket of this user there that nobody listens to any more is replaced; nothing else ever is.
// Errors: the path is too long, something is there, or it cannot be bound.
Result<Listener> ListenOnUnixSocket(const std::string& path);

}  // namespace halfbyte
