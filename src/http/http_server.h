// An HTTP/1.1 server (1.0 tolerated) over TCP or a unix socket: listeners, connections, limits and
// clocks of server.md §2.1. What is answered is an HttpHandler's business (http/http.h).
//
// Every connection lives on one IO thread: a coroutine that reads, and beside it a pump that polls
// the running reply and writes. The coroutine goes on reading while a reply runs, so a client that
// leaves is noticed at once; early bytes of a next request wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "http/http.h"

namespace halfbyte {

struct HttpOptions {
  // An address or a name; all addresses of a name are listened to.
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any that is free
  // Path of a unix socket to listen on instead of host and port. A socket of ours there that nobody
  // serves any more is replaced.
  std::string unix_path;

  int io_threads = 1;
  int64_t max_connections = 4096;  // more get 503 and are closed
  // Of one address (ClientAddress): more get 503, too. 0: half of all, but 64 at
  // least. On a unix socket, where all are one, it does not count.
  int64_t max_connections_per_client = 0;
  int64_t max_head_bytes = 16 << 10;   // request line and fields: 431
  int64_t max_target_bytes = 4 << 10;  // URL: 414
  int64_t max_body_bytes = 32 << 20;   // 413, by Content-Length before it is read
  // Of all bodies together, but for the first 64 KiB of each: 503. Half of it for one client. At
  // least one of the largest fits.
  int64_t max_bodies_bytes = 256 << 20;
  std::chrono::milliseconds head_timeout{10'000};  // from a head's first byte to its last: 408
  // A body pauses for longer, or comes slower on the whole than min_rate: 408.
  std::chrono::milliseconds body_timeout{30'000};
  int64_t min_rate = 1024;                         // bytes per second
  std::chrono::milliseconds idle_timeout{75'000};  // no request: the connection closes
  // The client takes nothing for longer, or takes slower what waits for it than min_rate: closes.
  std::chrono::milliseconds write_timeout{60'000};
  // After an answer that ends the connection: how long the client may still send, for nothing.
  std::chrono::milliseconds linger_timeout{5'000};
  std::chrono::milliseconds poll_interval{1'000};  // HttpReply::Poll of a silent reply
};

class HttpServer {
 public:
  // Listens and starts the threads. `handler` must outlive the server.
  // Errors: an address that cannot be found or bound, naming it.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpOptions& options,
                                                   HttpHandler* handler);
  // Stops at once, if Stop has not been called.
  ~HttpServer();

  // Where it listens, with the real port: "http://127.0.0.1:8000", "http://[::1]:8000",
  // "unix:/run/halfbyte.sock".
  const std::vector<std::string>& addresses() const;
  uint16_t port() const;  // 0 for a unix socket

  // Accepts nothing more, closes connections that wait for or are reading a request, and lets
  // running replies end until `deadline`; those left are destroyed. Returns how many were. Nothing
  // of the handler is called after it. (While a service drains it goes on answering, so this comes
  // last.)
  int64_t Stop(std::chrono::steady_clock::time_point deadline);

  int64_t connections() const;  // open now

 private:
  class State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace halfbyte
