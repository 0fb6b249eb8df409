// Parts of answers as JSON text: log-probabilities and usage, in the two routes' shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/output.h"
#include "text/tokenizer.h"

namespace halfbyte {

// What one choice reports about its tokens: the prompt's first (echo), then its own.
struct ReportedLogprobs {
  std::span<const int32_t> prompt_ids;  // of the entries below
  std::span<const std::optional<LogprobEntry>> prompt;
  std::span<const LogprobEntry> tokens;
};

// Completions: {"tokens":[...],"token_logprobs":[...],"top_logprobs":[...],"text_offset":[...]}.
// A token that is no UTF-8 by itself is written bytes:\xe2\x80. Of tokens that are written alike,
// a map keeps the most probable.
void AppendCompletionLogprobs(std::string& out, const Tokenizer& tokenizer,
                              const ReportedLogprobs& logprobs);

// Chat: [{"token":...,"logprob":...,"bytes":[...],"top_logprobs":[...]},...]. A token that is no
// UTF-8 by itself has U+FFFD and its exact bytes.
void AppendChatLogprobs(std::string& out, const Tokenizer& tokenizer,
                        std::span<const LogprobEntry> entries);

// How a completion writes a token: its text, or bytes:\x.. if that is no UTF-8 by itself. "" for an
// id that the tokenizer does not know.
std::string CompletionToken(const Tokenizer& tokenizer, int32_t id);

// All tokens' bytes as text. Ids that only the model has, not the tokenizer, give none.
std::string TextOf(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// {"prompt_tokens":...,...}
void AppendUsage(std::string& out, const Usage& usage);

// [1,2,3]
void AppendIds(std::string& out, std::span<const int32_t> ids);

}  // namespace halfbyte
