// Checks a stream of /v1/completions against what it should be, event by event: no token lost,
// repeated or out of order, no text changed, a proper end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace halfbyte {

// What a request gave when it ran alone, whole.
struct ExpectedAnswer {
  std::vector<int32_t> ids;
  std::string text;
  std::string finish_reason;
};

// One JSON object of the API, whole or a chunk of a stream, as far as a check needs it. `choices`
// must hold choice 0 only.
struct CompletionPiece {
  std::string text;
  std::vector<int32_t> ids;
  std::string finish_reason;                 // empty: goes on
  std::optional<int64_t> completion_tokens;  // of usage
  std::string error_code;                    // an error object; the other fields are empty then
};

// Reads such objects quickly; one for any number of streams.
class CompletionReader {
 public:
  CompletionReader();
  ~CompletionReader();
  Result<CompletionPiece> Read(std::string_view json);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

// One event stream: complete lines of `data:`, and the comments in between.
struct StreamUpdate {
  int64_t tokens = 0;             // new ones
  int64_t events = 0;             // of those that carried tokens
  std::vector<int64_t> ready_ns;  // of ": ready N" comments: CLOCK_MONOTONIC, nanoseconds
};

class StreamCheck {
 public:
  // `expected` outlives the check; null: nothing to compare with, only counted.
  explicit StreamCheck(const ExpectedAnswer* expected) : expected_(expected) {}

  // The next bytes of the body. Errors say what is wrong with the stream: it is lost then.
  Result<StreamUpdate> Feed(std::string_view bytes, CompletionReader& reader);
  // At the end of the body: everything has come, and [DONE].
  Status End() const;

  int64_t tokens() const { return tokens_; }
  // The stream told an error instead of an end.
  const std::string& error_code() const { return error_code_; }

 private:
  Status TakeLine(std::string_view line, CompletionReader& reader, StreamUpdate& update);
  Status TakePiece(const CompletionPiece& piece, StreamUpdate& update);

  const ExpectedAnswer* expected_;
  std::string line_;  // a line that has not ended
  int64_t tokens_ = 0;
  size_t text_bytes_ = 0;
  std::string finish_reason_;
  std::optional<int64_t> told_tokens_;  // by usage
  std::string error_code_;
  bool done_ = false;
};

}  // namespace halfbyte
