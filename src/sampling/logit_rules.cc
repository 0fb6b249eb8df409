#include "sampling/logit_rules.h"

#include <algorithm>
#include <limits>

namespace halfbyte {

LogitRules::LogitRules(const SamplingParams& params, std::span<const int32_t> prompt)
    : params_(params),
      penalize_(params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
                params.presence_penalty != 0) {
  if (!penalize_) return;
  for (const int32_t token : prompt) seen_.emplace(token, 0);
}

void LogitRules::Count(int32_t token) {
  if (penalize_) ++seen_[token];
}

void LogitRules::Apply(std::span<const std::span<const int32_t>> masks,
                       std::span<float> logits) const {
  const auto inside = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  for (const std::span<const int32_t> ids : masks) {
    for (const int32_t token : ids) {
      if (inside(token))
        logits[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
  }
  for (const LogitBias& bias : params_.logit_bias) {
    if (inside(bias.token))
      logits[static_cast<size_t>(bias.token)] += static_cast<float>(bias.bias);
  }
  // A finite logit stays finite, however near to zero the penalty is.
  constexpr float kMost = std::numeric_limits<float>::max();
  const float repetition =
      std::max(static_cast<float>(params_.repetition_penalty), std::numeric_limits<float>::min());
  for (const auto& [token, count] : seen_) {
    if (!inside(token)) continue;
    float& z = logits[static_cast<size_t>(token)];
    z = z > 0 && z <= kMost ? std::min(z / repetition, kMost) : z * repetition;
    z -= static_cast<float>(params_.frequency_penalty) * static_cast<float>(count) +
         (count > 0 ? static_cast<float>(params_.presence_penalty) : 0.0f);
  }
}

}  // namespace halfbyte
