#include "engine/choice_sampler.h"

#include "sampling/logprobs.h"
#include "sampling/sampler.h"

namespace halfbyte {

ChoiceSampler::ChoiceSampler(const Request& request, int32_t choice,
                             std::span<const int32_t> eos_ids, bool processed_logprobs)
    : request_(request),
      choice_(static_cast<uint32_t>(request.first_choice + choice)),
      processed_logprobs_(processed_logprobs),
      rules_(request.sampling, request.prompt),
      eos_ids_(eos_ids.begin(), eos_ids.end()) {}

Result<ChoiceSampler::Draw> ChoiceSampler::Next(std::span<const float> logits, bool reasoning) {
  std::vector<std::span<const int32_t>> masks;
  const auto mask = [&](std::span<const int32_t> ids) {
    if (!ids.empty()) masks.push_back(ids);
  };
  const bool too_early = drawn_ < request_.min_tokens;
  mask(request_.masked_ids);
  if (request_.reasoning_end_id && !reasoning) mask({&*request_.reasoning_end_id, 1});
  if (request_.stop.ignore_eos || too_early) mask(eos_ids_);
  if (too_early) mask(request_.stop.token_ids);
  std::span<const float> row = logits;
  if (!masks.empty() || !rules_.only_masks()) {
    row_.assign(logits.begin(), logits.end());
    rules_.Apply(masks, row_);
    row = row_;
  }
  HB_ASSIGN_OR_RETURN(const int token,
                      Sample(row, request_.sampling, static_cast<uint32_t>(drawn_), choice_));
  ++drawn_;
  rules_.Count(token);
  Draw draw{.token = token};
  if (request_.logprobs) {
    draw.logprobs = LogprobsOf(processed_logprobs_ ? row : logits, token, *request_.logprobs);
  }
  return draw;
}

}  // namespace halfbyte
