// Check of engine_loop.h: what a request may ask for.
#include <algorithm>
#include <cmath>

#include "engine/engine_loop.h"
#include "sampling/sampler.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

namespace halfbyte {
namespace {

constexpr int32_t kMostLogprobs = 20;
constexpr size_t kMostStopIds = 64;
constexpr size_t kMostSaltBytes = 256;

template <class... Args>
Refusal Invalid(const char* field, fmt::format_string<Args...> format, Args&&... args) {
  return {.reason = RefusalReason::kInvalid,
          .field = field,
          .message = fmt::format(format, std::forward<Args>(args)...)};
}

std::optional<Refusal> CheckIds(const char* field, std::span<const int32_t> ids,
                                int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary) {
      return Invalid(field, "{}: token id {} is outside the vocabulary of {} ids", field, id,
                     vocabulary);
    }
  }
  return std::nullopt;
}

std::optional<Refusal> CheckStops(const Request& request, int64_t vocabulary) {
  const StopRules& stop = request.stop;
  if (stop.strings.size() > StopMatcher::kMostStrings) {
    return Invalid("stop", "stop is a list of {} strings; allowed are {}", stop.strings.size(),
                   StopMatcher::kMostStrings);
  }
  for (const std::string& string : stop.strings) {
    if (string.empty() || string.size() > StopMatcher::kMostBytes || !IsValidUtf8(string)) {
      return Invalid("stop", "stop has a string of {} bytes; allowed are 1 to {} bytes of UTF-8",
                     string.size(), StopMatcher::kMostBytes);
    }
  }
  if (!stop.strings.empty() && request.output.kind == OutputFormat::Kind::kIds) {
    return Invalid("stop", "stop strings need text, but only token ids are produced");
  }
  if (stop.token_ids.size() > kMostStopIds) {
    return Invalid("stop_token_ids", "stop_token_ids is a list of {}; allowed are {}",
                   stop.token_ids.size(), kMostStopIds);
  }
  return CheckIds("stop_token_ids", stop.token_ids, vocabulary);
}

std::optional<Refusal> CheckLengths(const Request& request, int64_t max_model_len) {
  const int64_t prompt = std::ssize(request.prompt);
  if (prompt == 0) return Invalid("prompt", "the prompt is empty: it needs at least one token");
  const int64_t least = request.prompt_logprobs ? 0 : 1;
  if (request.max_tokens < least) {
    return Invalid("max_tokens", "max_tokens is {}; at least {} is needed", request.max_tokens,
                   least);
  }
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return Invalid("min_tokens", "min_tokens is {}; allowed is 0 to max_tokens, which is {}",
                   request.min_tokens, request.max_tokens);
  }
  // A prompt that fills the context leaves no room to answer; scored alone it may.
  const bool no_room = prompt >= max_model_len && request.max_tokens > 0;
  if (no_room || prompt > max_model_len) {
    return Refusal{.reason = RefusalReason::kContextLength,
                   .field = "prompt",
                   .message = fmt::format("the prompt has {} tokens, which leaves no room in the "
                                          "model's context of {}",
                                          prompt, max_model_len)};
  }
  if (request.max_tokens > max_model_len - prompt) {
    return Refusal{.reason = RefusalReason::kContextLength,
                   .field = "max_tokens",
                   .message = fmt::format("{} prompt tokens and max_tokens {} do not fit the "
                                          "model's context of {}",
                                          prompt, request.max_tokens, max_model_len)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> Check(const Request& request, const ExecutorLimits& limits,
                             const Tokenizer* tokenizer) {
  if (request.mailbox == nullptr) return Invalid("mailbox", "the request has no mailbox");
  if (request.n < 1 || request.first_choice < 0) {
    return Invalid("n", "n is {}, the first choice {}; at least 1 and 0 are needed", request.n,
                   request.first_choice);
  }
  if (auto refusal = CheckLengths(request, limits.max_model_len)) return refusal;
  if (auto refusal = CheckIds("prompt", request.prompt, limits.vocabulary)) return refusal;
  if (const Status valid = Validate(request.sampling); !valid) {
    const std::string& message = valid.error().message;
    Refusal refusal = Invalid("", "{}", message);
    refusal.field = message.substr(0, message.find(' '));  // the sentence starts with it
    return refusal;
  }
  for (const LogitBias& bias : request.sampling.logit_bias) {
    if (auto refusal = CheckIds("logit_bias", {&bias.token, 1}, limits.vocabulary)) return refusal;
  }
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > kMostLogprobs)) {
    return Invalid("logprobs", "logprobs is {}; allowed is 0 to {}", *request.logprobs,
                   kMostLogprobs);
  }
  if (request.prompt_logprobs && !request.logprobs) {
    return Invalid("logprobs", "log-probabilities of the prompt need logprobs");
  }
  if (request.cache_salt.size() > kMostSaltBytes) {
    return Invalid("cache_salt", "cache_salt has {} bytes; allowed are {}",
                   request.cache_salt.size(), kMostSaltBytes);
  }
  if (tokenizer == nullptr && request.output.kind != OutputFormat::Kind::kIds) {
    return Invalid("output", "there is no tokenizer: only token ids can be produced");
  }
  return CheckStops(request, limits.vocabulary);
}

}  // namespace halfbyte
