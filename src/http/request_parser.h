// Bytes of a client -> one HttpRequest or one HttpFault (server.md §2.1). Knows no sockets and no
// clocks: the same bytes give the same result however they are cut.
//
// Refused with 400, beside what is not HTTP/1.0 or 1.1: everything that two servers in a row could
// read as different requests, namely Content-Length together with Transfer-Encoding, two
// Content-Length or Host fields, a transfer coding other than chunked alone or in HTTP/1.0, fields
// continued on the next line, no Host in HTTP/1.1.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "http/http.h"

namespace halfbyte {

struct RequestLimits {
  int64_t head_bytes = 16 << 10;   // request line and fields; also trailers and chunk extensions
  int64_t target_bytes = 4 << 10;  // of the request line
  int64_t body_bytes = 32 << 20;
};

class RequestParser {
 public:
  enum class State {
    kHead,   // the head is not complete
    kBody,   // the head is, the body is not
    kDone,   // request() is complete
    kFault,  // fault() says why; the connection cannot go on
  };

  explicit RequestParser(const RequestLimits& limits);
  ~RequestParser();

  // Takes bytes from the front and says how many; those left are to be offered again, with more
  // behind them. Goes no further than the end of the head (an announced length is compared with the
  // limit only by the next call, which may be empty) and than the end of the request.
  size_t Push(std::string_view bytes);

  State state() const;
  bool started() const;            // bytes of a head have come
  const HttpFault& fault() const;  // kFault
  HttpRequest& request();          // what is known so far; its id always
  bool http_1_1() const;           // 1.0 otherwise. These three: after the head
  bool keep_alive() const;         // the client wants to send more requests
  bool expects_continue() const;   // it waits for "100 Continue" before it sends the body

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace halfbyte
