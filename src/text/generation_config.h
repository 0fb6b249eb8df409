// generation_config.json: what a model's makers recommend for requests that do not say otherwise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "sampling/sampler.h"

namespace halfbyte {

struct GenerationDefaults {
  SamplingParams sampling;                // without seed and logit_bias
  std::optional<int64_t> max_new_tokens;  // at least 1
  std::optional<int64_t> max_length;      // of prompt and answer, if max_new_tokens is absent
  int64_t min_new_tokens = 0;
  std::vector<std::string> stop_strings;  // within StopMatcher's limits
  std::vector<int32_t> suppress_tokens;   // never drawn; ids that the model lacks do no harm

  // Most tokens to generate after `prompt` tokens, at least 1; `otherwise` if nothing is said.
  int64_t MaxTokens(int64_t prompt, int64_t otherwise) const;
};

// Of DIR/generation_config.json, with the names that transformers gives: temperature, top_p, top_k,
// min_p, repetition_penalty, max_new_tokens, max_length, min_new_tokens, stop_strings,
// suppress_tokens and bad_words_ids of one token each; presence_penalty and frequency_penalty, as
// others write them; "do_sample": false means temperature 0. (eos_token_id: ReadModelConfig.)
// Without the file or a field: the values above.
//
// Fields that would change texts and are not used are named in one warning. Errors name a field of
// a wrong type or out of range.
Result<GenerationDefaults> ReadGenerationDefaults(const std::filesystem::path& model_dir);
// `defaults` with what the fields of `json` say instead. `source` names it in errors.
Result<GenerationDefaults> WithGenerationDefaults(GenerationDefaults defaults, const Json& json,
                                                  const std::string& source);

}  // namespace halfbyte
