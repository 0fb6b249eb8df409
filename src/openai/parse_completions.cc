// OpenAiApi::ParseCompletions: a body of /v1/completions (server.md §2.5).
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "openai/api.h"
#include "openai/field_table.h"
#include "openai/generation_fields.h"
#include "openai/json_body.h"

namespace halfbyte {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;

struct EncodedPrompt {
  std::string path;  // "prompt" or "prompt[3]"
  std::vector<int32_t> ids;
};

// A text or a list of ids.
ApiResult<EncodedPrompt> EncodePrompt(const BodyValue& value, std::string path,
                                      bool add_special_tokens, const ModelInfo& model,
                                      const EncodeLimits& limits) {
  EncodedPrompt prompt{.path = std::move(path)};
  if (value.is_array()) {
    if (std::ssize(value) > limits.most_ids) {
      return tl::unexpected(TooLong(prompt.path, limits.most_ids));
    }
    if (auto fault = CheckIds(value, prompt.path, model.vocabulary)) {
      return tl::unexpected(*std::move(fault));
    }
    prompt.ids = IdsOf(value);
    return prompt;
  }
  const auto& text = value.get_ref<const std::string&>();
  auto ids = model.tokenizer->EncodePrompt(text, add_special_tokens, limits);
  if (ids && !*ids) return tl::unexpected(TooLong(prompt.path, limits.most_ids));
  if (!ids || (*ids)->empty()) {
    const std::string why = ids ? "is empty; it needs at least one token" : ids.error().message;
    return tl::unexpected(
        FieldError("invalid_value", prompt.path, fmt::format("{} {}", prompt.path, why)));
  }
  prompt.ids = std::move(**ids);
  return prompt;
}

ApiResult<std::vector<EncodedPrompt>> ReadPrompts(const BodyFields& body, const ModelInfo& model,
                                                  const EncodeLimits& limits) {
  const BodyValue& value = *body.Find("prompt");
  const bool special = body.Bool("add_special_tokens").value_or(true);
  std::vector<EncodedPrompt> prompts;
  const bool several =
      value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  for (size_t i = 0; i < (several ? value.size() : 1); ++i) {
    auto prompt = several ? EncodePrompt(value[i], JoinPath("prompt", i), special, model, limits)
                          : EncodePrompt(value, "prompt", special, model, limits);
    if (!prompt) return tl::unexpected(std::move(prompt.error()));
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

std::optional<ApiError> CheckBestOf(const BodyFields& body, int64_t n) {
  const auto best_of = body.Int("best_of");
  if (!best_of || *best_of == n) return std::nullopt;
  return FieldError("unsupported_parameter", "best_of",
                    fmt::format("best_of is {}, which this server does not support; leave "
                                "it out or set it to n, which is {}",
                                *best_of, n));
}

}  // namespace

ApiResult<GenerationCall> OpenAiApi::ParseCompletions(std::string_view text,
                                                      std::stop_token stop) const {
  GenerationCall call;
  const auto tree = ParseChecked(text, fields_->completions(), options_, call.ignored);
  if (!tree) return tl::unexpected(tree.error());
  if (auto resolved = ResolveCompletions(*tree, {model_.max_model_len, stop}, call); !resolved) {
    return tl::unexpected(std::move(resolved.error()));
  }
  return call;
}

ApiResult<void> OpenAiApi::ResolveCompletions(const BodyValue& tree, const EncodeLimits& limits,
                                              GenerationCall& call) const {
  const BodyFields body(tree);
  if (auto read = ReadCommonFields(body, model_, options_, call); !read) {
    return tl::unexpected(std::move(read.error()));
  }
  if (auto fault = CheckBestOf(body, call.form.n)) return tl::unexpected(*std::move(fault));
  auto common = ReadRequest(body, model_, options_);
  if (!common) return tl::unexpected(std::move(common.error()));
  const auto logprobs = body.Int("logprobs");
  call.form.logprobs = logprobs.has_value();
  call.form.echo = body.Bool("echo").value_or(false);
  common->output.skip_special_tokens = body.Bool("skip_special_tokens").value_or(true);

  auto prompts = ReadPrompts(body, model_, limits);
  if (!prompts) return tl::unexpected(std::move(prompts.error()));
  for (EncodedPrompt& prompt : *prompts) {
    const auto lengths =
        ReadLengths(body, model_, options_, std::ssize(prompt.ids), prompt.path, kDefaultMaxTokens);
    if (!lengths) return tl::unexpected(lengths.error());
    if (lengths->clamped) call.clamped = lengths->max_tokens;
    Request request = *common;
    request.max_tokens = lengths->max_tokens;
    request.min_tokens = lengths->min_tokens;
    request.first_choice = static_cast<int32_t>(call.requests.size()) * request.n;
    if (logprobs) request.logprobs = static_cast<int32_t>(*logprobs);
    // A prompt that nothing follows is scored: that is how the engine takes it.
    request.prompt_logprobs = call.form.echo && (logprobs || request.max_tokens == 0);
    if (request.prompt_logprobs && !logprobs) request.logprobs = 0;
    if (call.form.echo || call.form.return_token_ids) call.form.prompts.push_back(prompt.ids);
    request.prompt = std::move(prompt.ids);
    call.requests.push_back(std::move(request));
  }
  return {};
}

}  // namespace halfbyte
