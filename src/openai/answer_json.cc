#include "openai/answer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "openai/json_text.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

namespace halfbyte {
namespace {

template <class... Args>
void AppendFormat(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// [a,b,...], each written by `append`.
template <class Range, class Append>
void AppendList(std::string& out, const Range& range, const Append& append) {
  out += '[';
  bool first = true;
  for (const auto& each : range) {
    if (!first) out += ',';
    first = false;
    append(each);
  }
  out += ']';
}

std::string_view BytesOf(const Tokenizer& tokenizer, int32_t id) {
  return tokenizer.TokenBytes(id).value_or(std::string_view());
}

// {"Hello":-0.1,...}: the best tokens and the drawn one.
void AppendTopMap(std::string& out, const Tokenizer& tokenizer, const LogprobEntry& entry) {
  std::vector<std::string> written;
  const auto append = [&](const TokenLogprob& token) {
    std::string text = CompletionToken(tokenizer, token.token);
    if (std::ranges::find(written, text) != written.end()) return;
    if (!written.empty()) out += ',';
    AppendJsonString(out, text);
    out += ':';
    AppendLogprob(out, token.logprob);
    written.push_back(std::move(text));
  };
  out += '{';
  for (const TokenLogprob& token : entry.top) append(token);
  append(entry.chosen);
  out += '}';
}

// The members of a chat entry without its braces.
void AppendChatToken(std::string& out, const Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string_view bytes = BytesOf(tokenizer, token.token);
  out += R"("token":)";
  AppendJsonString(out, IsValidUtf8(bytes) ? bytes : kReplacementCharacter);
  out += R"(,"logprob":)";
  AppendLogprob(out, token.logprob);
  out += R"(,"bytes":)";
  AppendList(out, bytes, [&](char c) { AppendFormat(out, "{}", static_cast<uint8_t>(c)); });
}

}  // namespace

std::string CompletionToken(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = BytesOf(tokenizer, id);
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) AppendFormat(out, "\\x{:02x}", static_cast<uint8_t>(c));
  return out;
}

void AppendCompletionLogprobs(std::string& out, const Tokenizer& tokenizer,
                              const ReportedLogprobs& logprobs) {
  // All entries in a row; only the prompt's first token has none.
  std::vector<const LogprobEntry*> entries;
  for (const auto& entry : logprobs.prompt) entries.push_back(entry ? &*entry : nullptr);
  for (const LogprobEntry& entry : logprobs.tokens) entries.push_back(&entry);

  out += R"({"tokens":)";
  AppendList(out, entries, [&](const LogprobEntry* entry) {
    const int32_t id = entry != nullptr ? entry->chosen.token : logprobs.prompt_ids.front();
    AppendJsonString(out, CompletionToken(tokenizer, id));
  });
  out += R"(,"token_logprobs":)";
  AppendList(out, entries, [&](const LogprobEntry* entry) {
    if (entry == nullptr) {
      out += "null";
    } else {
      AppendLogprob(out, entry->chosen.logprob);
    }
  });
  out += R"(,"top_logprobs":)";
  AppendList(out, entries, [&](const LogprobEntry* entry) {
    if (entry == nullptr) {
      out += "null";
    } else {
      AppendTopMap(out, tokenizer, *entry);
    }
  });
  out += R"(,"text_offset":)";
  AppendList(out, entries, [&](const LogprobEntry* entry) {
    AppendFormat(out, "{}", entry != nullptr ? entry->text_offset : 0);
  });
  out += '}';
}

void AppendChatLogprobs(std::string& out, const Tokenizer& tokenizer,
                        std::span<const LogprobEntry> entries) {
  AppendList(out, entries, [&](const LogprobEntry& entry) {
    out += '{';
    AppendChatToken(out, tokenizer, entry.chosen);
    out += R"(,"top_logprobs":)";
    AppendList(out, entry.top, [&](const TokenLogprob& token) {
      out += '{';
      AppendChatToken(out, tokenizer, token);
      out += '}';
    });
    out += '}';
  });
}

std::string TextOf(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += BytesOf(tokenizer, id);
  return ToValidUtf8(bytes);
}

void AppendUsage(std::string& out, const Usage& usage) {
  AppendFormat(out,
               R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
               R"("prompt_tokens_details":{{"cached_tokens":{}}},)"
               R"("completion_tokens_details":{{"reasoning_tokens":{}}}}})",
               usage.prompt_tokens, usage.completion_tokens,
               usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
               usage.reasoning_tokens);
}

void AppendIds(std::string& out, std::span<const int32_t> ids) {
  AppendList(out, ids, [&](int32_t id) { AppendFormat(out, "{}", id); });
}

}  // namespace halfbyte
