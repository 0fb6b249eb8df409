// The output stage of one choice: tokens in, pieces of text out (server.md §1.9). Detokenises,
// splits reasoning from content, finds stop strings, counts lengths, and so decides in the step
// that completes a stop that the choice ends.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/output.h"
#include "engine/request.h"
#include "text/chat_splitter.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace halfbyte {

class ChoiceOutput {
 public:
  // All must outlive this; `tokenizer` may be null for OutputFormat::kIds. `first_offset`:
  // characters before the answer in LogprobEntry::text_offset.
  ChoiceOutput(const Request& request, const Tokenizer* tokenizer, std::span<const int32_t> eos_ids,
               int64_t first_offset);

  // One more token; adds what it gives to the event. If the choice ends with it, the event says how
  // and holds all that was held back.
  void Add(int32_t token, std::optional<LogprobEntry> logprobs, OutputEvent& event);
  // The choice ends without a further token.
  void End(Finish finish, OutputEvent& event);

  bool finished() const { return finished_; }
  bool in_reasoning() const {
    return request_.output.kind == OutputFormat::Kind::kChat && splitter_.in_reasoning();
  }
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  const ChatSplitter::Suppressed& suppressed() const { return splitter_.suppressed(); }

 private:
  // One stream of text. Lengths count what was decoded, whether a stop string held it or not.
  struct Channel {
    Utf8Stream decoder;
    int64_t bytes = 0;
    int64_t characters = 0;
  };
  struct WaitingEntry {
    LogprobEntry entry;
    bool reasoning = false;
    int64_t begin = 0;
    std::optional<int64_t> end;  // known when nothing of the token is held back
  };

  bool EndsTheText(int32_t token) const;
  void Feed(std::string_view bytes, bool control, OutputEvent& event);
  void FlushText(OutputEvent& event);
  void Show(const ChatSplitter::Pieces& pieces, bool last, OutputEvent& event);
  std::string Decode(Channel& channel, std::string_view bytes, bool last);
  void AddContent(std::string_view text, OutputEvent& event);
  void Await(LogprobEntry entry, bool markup);
  void ReleaseEntries(bool all, OutputEvent& event);

  const Request& request_;
  const Tokenizer* const tokenizer_;
  const std::span<const int32_t> eos_ids_;
  ChatSplitter splitter_;
  Channel content_;
  Channel reasoning_;
  StopMatcher matcher_;
  int64_t shown_ = 0;  // bytes of content
  std::deque<WaitingEntry> entries_;
  int64_t tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  bool finished_ = false;
};

// Characters (code points) of valid UTF-8.
int64_t CountCharacters(std::string_view text);

}  // namespace halfbyte
