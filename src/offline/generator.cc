#include "offline/generator.h"

#include <algorithm>
#include <chrono>

#include "engine/choice_sampler.h"
#include "engine/request.h"

namespace halfbyte {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Result<int64_t> TokensToGenerate(const GenerateRequest& request, int64_t context) {
  const int64_t prompt = std::ssize(request.prompt);
  if (prompt == 0) return MakeError("the prompt is empty: it needs at least one token");
  if (prompt >= context) {
    return MakeError("the prompt has {} tokens, which leaves no room in the model's context of {}",
                     prompt, context);
  }
  // The last token is returned without being fed back, so it needs no place of its own.
  const int64_t room = context - prompt + 1;
  if (!request.max_tokens) return room;
  if (*request.max_tokens < 1) {
    return MakeError("max_tokens {}: at least 1 is needed", *request.max_tokens);
  }
  if (*request.max_tokens > room) {
    return MakeError("{} prompt tokens and max_tokens {} do not fit the model's context of {}",
                     prompt, *request.max_tokens, context);
  }
  return *request.max_tokens;
}

// Feeds the prompt in chunks; returns the logits after its last token.
Result<MatrixView<const float>> ReadPrompt(Transformer& model, KvCache& cache, Sequence& sequence,
                                           std::span<const int32_t> prompt) {
  const size_t chunk = static_cast<size_t>(model.options().batch_tokens);
  while (prompt.size() > chunk) {
    const BatchItem item{&sequence, prompt.first(chunk), LogitsWanted::kNone};
    HB_RETURN_IF_ERROR(model.Forward(cache, {&item, 1}));
    prompt = prompt.subspan(chunk);
  }
  const BatchItem item{&sequence, prompt, LogitsWanted::kLast};
  return model.Forward(cache, {&item, 1});
}

}  // namespace

Result<GenerateResult> GenerateTokens(Transformer& model, const GenerateRequest& request,
                                      const std::function<bool(int32_t)>& on_token) {
  HB_RETURN_IF_ERROR(Validate(request.sampling));
  const int64_t context = model.config().max_position_embeddings;
  HB_ASSIGN_OR_RETURN(const int64_t max_tokens, TokensToGenerate(request, context));
  auto made = model.NewCache({.context_tokens = std::ssize(request.prompt) + max_tokens});
  if (!made && !request.max_tokens) {
    return MakeError("{}; without max_tokens the cache is for the model's whole context of {}",
                     made.error().message, context);
  }
  HB_ASSIGN_OR_RETURN(const auto cache, std::move(made));
  HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());

  const Request rules{.prompt = request.prompt,
                      .sampling = request.sampling,
                      .masked_ids = request.masked_ids,
                      .min_tokens = request.min_tokens};
  const std::vector<int32_t> end_ids(request.stop_ids.begin(), request.stop_ids.end());
  ChoiceSampler sampler(rules, /*choice=*/0, end_ids, /*processed_logprobs=*/false);

  GenerateResult result;
  Clock::time_point start = Clock::now();
  HB_ASSIGN_OR_RETURN(MatrixView<const float> logits,
                      ReadPrompt(model, *cache, sequence, request.prompt));
  result.prompt_seconds = SecondsSince(start);
  start = Clock::now();
  for (;;) {
    HB_ASSIGN_OR_RETURN(const ChoiceSampler::Draw draw,
                        sampler.Next({logits.data, static_cast<size_t>(logits.columns)},
                                     /*reasoning=*/false));
    const int32_t token = draw.token;
    result.tokens.push_back(token);
    if (!on_token(token) || std::ranges::find(end_ids, token) != end_ids.end()) {
      result.finish = FinishReason::kStop;
      break;
    }
    if (std::ssize(result.tokens) == max_tokens) break;
    const BatchItem item{&sequence, {&token, 1}, LogitsWanted::kLast};
    HB_ASSIGN_OR_RETURN(logits, model.Forward(*cache, {&item, 1}));
  }
  result.generate_seconds = SecondsSince(start);
  return result;
}

}  // namespace halfbyte
