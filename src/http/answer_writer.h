// Polls a running reply and sends what it gives: head, framing, body. Knows no event loop: it sends
// what the socket takes and says whether it waits for the reply or for the socket.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "http/http.h"

namespace halfbyte {

// What the request asks of its answer.
struct AnswerFraming {
  std::string request_id;
  bool http_1_1 = true;
  bool head_only = false;  // HEAD
  bool keep_alive = true;  // the client wants to, and we do
};

class AnswerWriter {
 public:
  enum class State {
    kWaiting,  // for the reply: Poll
    kBlocked,  // for the client: Continue when the socket takes bytes
    kDone,     // everything is sent
    kBroken,   // the socket does not work any more
  };

  // `socket`: a connected one that does not block, open as long as this lives.
  AnswerWriter(int socket, std::unique_ptr<HttpReply> reply, AnswerFraming framing);

  // Asks the reply for output and sends it. kWaiting only. `date`: of the field Date.
  State Poll(std::string_view date);
  // Sends what was left. kBlocked only.
  State Continue();

  State state() const { return state_; }
  // kDone: the connection can serve another request.
  bool keep_alive() const { return framing_.keep_alive; }
  bool begun() const { return started_; }  // something of the answer is on its way
  bool complete() const { return last_; }  // the reply has given everything
  int64_t sent() const { return sent_; }   // bytes

 private:
  void StartAnswer(const HttpReply::Output& output, std::string_view date);
  void Send(std::span<iovec> pieces);

  const int socket_;
  std::unique_ptr<HttpReply> reply_;
  AnswerFraming framing_;
  State state_ = State::kWaiting;
  bool started_ = false;
  bool chunked_ = false;
  bool has_body_ = true;
  bool last_ = false;   // the reply has nothing more
  std::string prefix_;  // head and chunk size of the output being sent; its capacity is reused
  int64_t sent_ = 0;
  std::string unsent_;  // what the socket did not take, from unsent_from_ on
  size_t unsent_from_ = 0;
};

}  // namespace halfbyte
