// The answers of one HTTP/1.1 connection, seen by a client: bytes in, head and body out. For load
// generators and tests; knows Content-Length, chunked bodies and bodies that end with the
// connection, and calls everything else an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace halfbyte {

struct HttpAnswerHead {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case

  std::optional<std::string_view> Find(std::string_view lower_case_name) const;
};

class HttpAnswerReader {
 public:
  // Takes the next bytes of the connection and appends what they hold of the body, without framing,
  // to `body`. Bytes behind the end of the answer are an error: nothing was asked for there.
  Status Feed(std::string_view bytes, std::string& body);
  // The peer has closed: an error if the answer was not at its end.
  Status End();

  const std::optional<HttpAnswerHead>& head() const { return head_; }
  bool complete() const { return state_ == State::kComplete; }
  // The connection can carry another request.
  bool keep_alive() const { return keep_alive_; }

 private:
  enum class State {
    kHead,
    kLength,
    kChunkSize,
    kChunk,
    kChunkEnd,
    kTrailer,
    kUntilEnd,
    kComplete
  };

  Status TakeLine(std::string_view line);
  Status TakeHeadLine(std::string_view line);
  Status FinishHead();

  State state_ = State::kHead;
  std::optional<HttpAnswerHead> head_;  // once it is complete
  HttpAnswerHead open_head_;
  std::string line_;       // what has come of the current line
  int64_t remaining_ = 0;  // of the body or chunk
  bool keep_alive_ = true;
};

}  // namespace halfbyte
