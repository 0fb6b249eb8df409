// A chat body's messages as token ids, for generating, /tokenize and /render.
#pragma once

#include <cstdint>
#include <vector>

#include "openai/api.h"
#include "openai/json_body.h"
#include "openai/thinking.h"

namespace halfbyte {

struct EncodedChat {
  std::vector<int32_t> ids;
  ThinkingAsked thinking;
  bool continues = false;  // the final message goes on: no reasoning comes before
};

// Of a checked body. `open_answer`: the prompt ends with the opening of an answer.
// Errors: contradicting spellings of thinking; a message that its role does not allow; wording that
// the model does not bring (`prompt_data_missing`); more ids than the limits allow.
ApiResult<EncodedChat> EncodeChatBody(const BodyFields& body, const ModelInfo& model,
                                      const ApiOptions& options, bool open_answer,
                                      const EncodeLimits& limits);

}  // namespace halfbyte
