// From a call's events to what the client gets: one body, or the chunks of a stream (server.md
// §2.5 to §2.7).
//
// Law: the texts of a stream's chunks joined are the texts of the body, however the events were
// grouped.
//
//   Answer answer(api.model(), call, "cmpl-1", now);
//   if (stream)  send(answer.Stream(mailbox->Take()));     // until answer.finished()
//   else         answer.Add(mailbox->Take()), at the end answer.Body();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/output.h"
#include "openai/api_error.h"
#include "openai/generation_call.h"

namespace halfbyte {

struct ModelInfo;

class Answer {
 public:
  // `model` outlives the answer; `id` with its prefix ("chatcmpl-...", "cmpl-..."); `created` in
  // seconds since 1970. Copies what it needs of the call, so its requests can be moved afterwards.
  Answer(const ModelInfo& model, const GenerationCall& call, std::string_view id, int64_t created);
  ~Answer();
  Answer(Answer&&) noexcept;

  // Takes events of all requests of the call, in the order of their mailbox.

  // Not streaming: keeps them.
  void Add(std::vector<OutputEvent> events);
  // Streaming: the server-sent events to send now; may be empty. With the last choice's end, or
  // with the first failure, also what closes the stream ("data: [DONE]").
  std::string Stream(std::vector<OutputEvent> events);
  // A failure from outside (no event tells it): the error event and [DONE]; finished afterwards.
  std::string StreamError(const ApiError& error);

  // Every choice has ended, or one has failed: then cancel the others. No further events.
  bool finished() const;
  // The failure, if there was one. If nothing was sent yet, it can still be the whole answer.
  const std::optional<ApiError>& error() const;
  // Not streaming, finished, no error: the body.
  std::string Body() const;

  // A line that keeps a silent stream alive.
  static constexpr std::string_view kPing = ": ping\n\n";

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace halfbyte
