// Where a server listens, and single requests to it that wait for their whole answer.
#pragma once

#include <netinet/in.h>

#include <chrono>
#include <string>
#include <string_view>

#include "base/result.h"
#include "loadgen/http_answer_reader.h"

namespace halfbyte {

struct ServerAddress {
  std::string host;  // "127.0.0.1": a number of IPv4
  uint16_t port = 0;

  // "http://127.0.0.1:8000", also with a slash at its end. Only addresses of this machine
  // (127.0.0.0/8, localhost): what is here makes load.
  static Result<ServerAddress> OfUrl(std::string_view url);
  std::string Url() const;
  sockaddr_in SocketAddress() const;
};

// A POST if `body` is not empty, else a GET. `key` as bearer, if not empty.
std::string RequestText(const ServerAddress& server, std::string_view path, std::string_view body,
                        std::string_view key);

struct HttpAnswer {
  HttpAnswerHead head;
  std::string body;
};

// One request on a connection of its own. An error if no whole answer comes within `timeout`.
Result<HttpAnswer> Fetch(const ServerAddress& server, std::string_view path, std::string_view body,
                         std::string_view key,
                         std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace halfbyte
