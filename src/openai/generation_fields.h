// What the bodies of both generating routes say in the same way.
#pragma once

#include <cstdint>
#include <optional>

#include "openai/api.h"
#include "openai/json_body.h"

namespace halfbyte {

// Of a checked body: the name the answer repeats. Error: 404 `model_not_found`.
ApiResult<std::string> ReadModelName(const BodyFields& body, const ModelInfo& model);

// stream, stream_options, n, return_token_ids. Errors: stream_options without stream.
ApiResult<AnswerForm> ReadForm(const BodyFields& body, const ApiOptions& options);

// The call's model name, form and seed_drawn. Errors: those of the two above.
ApiResult<void> ReadCommonFields(const BodyFields& body, const ModelInfo& model,
                                 const ApiOptions& options, GenerationCall& call);

// Sampling, stops, n, seed, salt: everything of a Request but prompt, lengths, log-probabilities
// and output format. Errors: ids outside the vocabulary.
ApiResult<Request> ReadRequest(const BodyFields& body, const ModelInfo& model,
                               const ApiOptions& options);

// The lengths of an answer to a prompt of `prompt` tokens.
struct Lengths {
  int64_t max_tokens = 0;
  int64_t min_tokens = 0;
  bool clamped = false;
};
// `prompt_path` names the prompt in errors; `fallback`: max_tokens when neither the body nor the
// model's defaults say it, which is shortened to what is left of the context. Errors: two names of
// max_tokens that differ, 0 without `echo`, prompt or lengths that do not fit, min_tokens above
// max_tokens.
ApiResult<Lengths> ReadLengths(const BodyFields& body, const ModelInfo& model,
                               const ApiOptions& options, int64_t prompt,
                               const std::string& prompt_path, int64_t fallback);

// What a text at `path` is told that does not fit the model's context, whatever may follow it.
ApiError TooLong(const std::string& path, int64_t most_ids);

// Error naming the first id at `path` that the model does not have.
std::optional<ApiError> CheckIds(const BodyValue& ids, const std::string& path, int64_t vocabulary);
std::vector<int32_t> IdsOf(const BodyValue& ids);

}  // namespace halfbyte
