// OpenAiApi::ParseChat: a body of /v1/chat/completions (server.md §2.6, §3).
#include <utility>

#include "openai/api.h"
#include "openai/chat_prompt.h"
#include "openai/field_table.h"
#include "openai/generation_fields.h"
#include "openai/json_body.h"

namespace halfbyte {

ApiResult<GenerationCall> OpenAiApi::ParseChat(std::string_view text, std::stop_token stop) const {
  GenerationCall call;
  const auto tree = ParseChecked(text, fields_->chat(), options_, call.ignored);
  if (!tree) return tl::unexpected(tree.error());
  if (auto resolved = ResolveChat(*tree, {model_.max_model_len, stop}, call); !resolved) {
    return tl::unexpected(std::move(resolved.error()));
  }
  return call;
}

ApiResult<void> OpenAiApi::ResolveChat(const BodyValue& tree, const EncodeLimits& limits,
                                       GenerationCall& call) const {
  const BodyFields body(tree);
  if (auto common = ReadCommonFields(body, model_, options_, call); !common) {
    return tl::unexpected(std::move(common.error()));
  }
  call.form.chat = true;
  call.form.include_reasoning = body.Bool("include_reasoning").value_or(true);
  call.form.reasoning_field = options_.reasoning_field;
  call.form.logprobs = body.Bool("logprobs").value_or(false);
  if (body.Int("top_logprobs").value_or(0) > 0 && !call.form.logprobs) {
    return tl::unexpected(
        FieldError("invalid_value", "top_logprobs",
                   "top_logprobs is there, but logprobs is not true; set it or leave "
                   "top_logprobs out"));
  }
  auto request = ReadRequest(body, model_, options_);
  if (!request) return tl::unexpected(std::move(request.error()));

  auto chat = EncodeChatBody(body, model_, options_, /*open_answer=*/true, limits);
  if (!chat) return tl::unexpected(std::move(chat.error()));
  const auto lengths = ReadLengths(body, model_, options_, std::ssize(chat->ids), "messages",
                                   /*fallback=*/model_.max_model_len);
  if (!lengths) return tl::unexpected(lengths.error());
  if (lengths->clamped) call.clamped = lengths->max_tokens;
  call.thinking = chat->thinking.used;
  call.form.thinking = chat->thinking.on;

  request->max_tokens = lengths->max_tokens;
  request->min_tokens = lengths->min_tokens;
  if (call.form.logprobs) {
    request->logprobs = static_cast<int32_t>(body.Int("top_logprobs").value_or(0));
  }
  request->masked_ids.insert(request->masked_ids.end(), chat_masks_.begin(), chat_masks_.end());
  request->reasoning_end_id = think_end_;
  request->output = {.kind = OutputFormat::Kind::kChat,
                     .starts_in_reasoning = chat->thinking.on && !chat->continues};
  if (call.form.return_token_ids) call.form.prompts.push_back(chat->ids);
  request->prompt = std::move(chat->ids);
  call.requests.push_back(*std::move(request));
  return {};
}

}  // namespace halfbyte
