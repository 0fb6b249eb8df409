// What an HTTP server and the answers it gives say to each other: requests come as values, replies
// are things that are polled. The transport (http/http_server.h) knows bytes, limits and clocks;
// routes, keys and bodies are a handler's. No handler sees a socket.
//
//   class Hello : public HttpHandler { ... Handle(HttpRequest, Wake) {
//     return ReplyWith({.head = {.status = 200}, .body = "hello\n"}); } ... };
//
// Everything of a connection happens on one IO thread: CheckHead, Handle, Poll and the destructor
// of a reply are never called side by side for one connection, and must not block: they delay all
// streams of that thread. They do not throw either: what escapes them ends the program.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/wake.h"

namespace halfbyte {

class BodyClaim;

// Header fields in the order they came; names are compared without regard to case.
class HttpFields {
 public:
  HttpFields() = default;
  HttpFields(std::initializer_list<std::pair<std::string, std::string>> fields) : fields_(fields) {}

  void Add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  // The first field of this name, without white space around it.
  std::optional<std::string_view> Find(std::string_view name) const;

  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct HttpRequest {
  std::string method;  // "GET": as sent, capitals matter
  // With %XX decoded (a broken escape never gets here), so it may hold any byte: do not log it raw.
  // It starts with '/', or is "*" (OPTIONS).
  std::string path;
  std::string query;  // what follows the first '?', as sent
  HttpFields fields;
  // Length that the client announced; absent: no body, or chunked (then has_body).
  std::optional<int64_t> content_length;
  bool has_body = false;  // announced and not of length 0
  std::string body;       // empty in CheckHead
  // The client's x-request-id if that is [A-Za-z0-9._-]{1,128}, else a new one. The transport adds
  // it to every answer.
  std::string id;
  std::string peer;  // "127.0.0.1:50412", "[::1]:50412", "unix"
  // The transport's: counts the body's memory as long as it lives. Keep it with the body.
  std::shared_ptr<BodyClaim> body_claim;
  // When its last byte was read; in CheckHead: the last byte of the head.
  std::chrono::steady_clock::time_point arrival;
};

// How an answer starts. The transport adds Date, Connection, Content-Length or Transfer-Encoding,
// and x-request-id: `fields` has none of these. A control character in a value, which could end the
// line, is sent as '?'.
struct HttpHead {
  int status = 200;
  HttpFields fields;
  bool close = false;  // the connection ends with this answer
};

struct HttpResponse {
  HttpHead head;
  std::string body;
  // Not sent before that (to the next poll).
  std::chrono::steady_clock::time_point not_before{};
};

// An answer under way. Destroyed after its `done` output, or earlier: then the client has gone
// (closed, half-closed, reset, took nothing for write_timeout) or the server stops, and whatever
// works for it is to be cancelled.
class HttpReply {
 public:
  struct Output {
    std::optional<HttpHead> head;  // once, with or before the first bytes
    std::string bytes;             // of the body, without framing
    bool done = false;             // with the last ones
  };
  virtual ~HttpReply() = default;

  // What there is to send now; nothing new: an empty Output. Called right after Handle, after each
  // wake, and once a second (poll_interval) for what silence asks for, such as SSE pings; but not
  // while earlier output still waits for the client to take it: a wake during that time is
  // remembered. All that is returned at once goes out at once, as one chunk.
  // Head and done in one Output: the answer has a Content-Length. Head alone: the body is chunked,
  // or lasts until the connection ends for HTTP/1.0. For HEAD the bytes are not sent.
  virtual Output Poll() = 0;
};

// Why the transport refuses a request or a connection.
struct HttpFault {
  // 400 "bad_request" (not HTTP, ambiguous length, ...), 408 "request_timeout",
  // 413 "body_too_large", 414 "url_too_long", 431 "headers_too_large",
  // 503 "too_many_connections", "too_many_bodies".
  int status = 400;
  std::string code;
  std::string message;  // one sentence: what came, what is allowed
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // The head of a request is here, its body not yet. An answer refuses the request (keys, unknown
  // route, method, content type): nothing more of it is read, and if it has a body the connection
  // closes. Without one the body is read, if it fits the limit, and Handle is called.
  virtual std::optional<HttpResponse> CheckHead(const HttpRequest& head) = 0;

  // Quick: what takes longer than a fraction of a millisecond goes to a pool, which wakes the
  // reply: `wake` asks for a Poll soon. Never null.
  virtual std::unique_ptr<HttpReply> Handle(HttpRequest request, Wake wake) = 0;

  // The answer to a fault; the connection closes after it. `request` is what could be read of it:
  // at least its id.
  virtual HttpResponse Answer(const HttpFault& fault, const HttpRequest& request) = 0;
};

// A reply that is complete from the start.
std::unique_ptr<HttpReply> ReplyWith(HttpResponse response);

// What of HttpRequest::peer one owner has: the address without the port, of IPv6 its first 64 bits.
// "127.0.0.1", "2001:db8:0:1::", "unix".
std::string ClientAddress(std::string_view peer);

// Is this a Content-Type of JSON in UTF-8: application/json, with no parameter but charset=utf-8?
bool IsJsonContentType(std::string_view content_type);

}  // namespace halfbyte
