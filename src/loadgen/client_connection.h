// One connection of a client that never blocks: sends a request, takes in the answer.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "loadgen/http_answer_reader.h"

namespace halfbyte {

class ClientConnection {
 public:
  // Watched by the epoll descriptor `epoll`, which outlives it, with `tag` as its events' pointer.
  ClientConnection(int epoll, void* tag) : epoll_(epoll), tag_(tag) {}
  ~ClientConnection() { Close(); }
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  // Sends a request, on the open connection or on a new one. `small_window`: the new connection
  // takes in only a few kilobytes that nobody reads.
  Status Begin(const sockaddr_in& server, std::string request, bool small_window = false);
  // For events of epoll: sends what waits, reads once and appends what came of the answer's body to
  // `body`. Errors: the connection broke, or what came is no answer.
  Status Continue(uint32_t events, std::string& body);
  // Reads nothing more, but stays open.
  void StopReading();
  // With a reset, so that the peer learns of it at once and the port is free at once.
  void Close();

  const HttpAnswerReader& answer() const { return reader_; }
  bool open() const { return fd_ >= 0; }

 private:
  Status Connect(const sockaddr_in& server, bool small_window);
  Status SendWaiting();
  void Watch(uint32_t events, int operation);

  const int epoll_;
  void* const tag_;
  int fd_ = -1;
  std::string request_;
  size_t sent_ = 0;
  HttpAnswerReader reader_;
};

}  // namespace halfbyte
