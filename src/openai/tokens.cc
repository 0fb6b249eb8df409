// OpenAiApi::Tokenize, Detokenize and Render: what needs no engine (server.md §2.2).
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "openai/answer_json.h"
#include "openai/api.h"
#include "openai/chat_prompt.h"
#include "openai/field_table.h"
#include "openai/generation_fields.h"
#include "openai/json_body.h"
#include "openai/json_text.h"

namespace halfbyte {
namespace {

template <class Range, class Append>
std::string JsonList(const Range& range, const Append& append) {
  std::string out = "[";
  for (const auto& each : range) {
    if (out.size() > 1) out += ',';
    append(out, each);
  }
  return out + ']';
}

std::string TokenizeBody(const ModelInfo& model, std::span<const int32_t> ids, bool strings) {
  std::string out =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":)", ids.size(), model.max_model_len);
  AppendIds(out, ids);
  if (strings) {
    out += R"(,"token_strs":)";
    out += JsonList(ids, [&](std::string& list, int32_t id) {
      AppendJsonString(list, CompletionToken(*model.tokenizer, id));
    });
  }
  return out + '}';
}

std::string SamplingBody(const GenerationCall& call) {
  const Request& request = call.requests.front();
  const SamplingParams& sampling = request.sampling;
  // Drawn seeds differ from call to call.
  const std::string seed =
      call.seed_drawn ? std::string("null") : fmt::to_string(static_cast<int64_t>(sampling.seed));
  const std::string stops =
      JsonList(request.stop.strings,
               [](std::string& list, const std::string& stop) { AppendJsonString(list, stop); });
  std::string biases = JsonList(sampling.logit_bias, [](std::string& list, const LogitBias& bias) {
    list += fmt::format("\"{}\":{}", bias.token, bias.bias);
  });
  std::string suppressed;
  AppendIds(suppressed, request.masked_ids);
  biases.front() = '{';
  biases.back() = '}';
  return fmt::format(
      R"({{"temperature":{},"top_p":{},"top_k":{},"min_p":{},"repetition_penalty":{},)"
      R"("frequency_penalty":{},"presence_penalty":{},"logit_bias":{},"n":{},"seed":{},)"
      R"("max_tokens":{},"min_tokens":{},"stop":{},"ignore_eos":{},"suppress_tokens":{}}})",
      sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p,
      sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty, biases,
      request.n, seed, request.max_tokens, request.min_tokens, stops, request.stop.ignore_eos,
      suppressed);
}

std::string ThinkingBody(const std::optional<ThinkingUsed>& thinking) {
  if (!thinking) return "null";
  const std::string requested = thinking->requested ? JsonString(*thinking->requested) : "null";
  const std::string used = thinking->on ? JsonString(Name(thinking->effort)) : "null";
  return fmt::format(R"({{"mode":"{}","effort_requested":{},"effort_used":{}}})",
                     thinking->on ? "on" : "off", requested, used);
}

std::string RenderBody(const GenerationCall& call, const ModelInfo& model, bool several) {
  int64_t count = 0;
  for (const Request& request : call.requests) count += std::ssize(request.prompt);
  std::string texts = JsonList(call.requests, [&](std::string& list, const Request& request) {
    AppendJsonString(list, TextOf(*model.tokenizer, request.prompt));
  });
  std::string ids = JsonList(call.requests, [](std::string& list, const Request& request) {
    AppendIds(list, request.prompt);
  });
  if (!several) {
    texts = texts.substr(1, texts.size() - 2);
    ids = ids.substr(1, ids.size() - 2);
  }
  const StopRules& stop = call.requests.front().stop;
  std::vector<int32_t> stops = stop.ignore_eos ? std::vector<int32_t>() : model.eos_ids;
  for (const int32_t id : stop.token_ids) {
    if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
  }
  std::string stop_ids;
  AppendIds(stop_ids, stops);
  return fmt::format(
      R"({{"prompt":{},"prompt_token_ids":{},"count":{},"stop_token_ids":{},"sampling":{},)"
      R"("thinking":{}}})",
      texts, ids, count, stop_ids, SamplingBody(call), ThinkingBody(call.thinking));
}

bool IsChat(const BodyValue& body) { return BodyFields(body).Has("messages"); }

}  // namespace

ApiResult<JsonAnswer> OpenAiApi::Tokenize(std::string_view text, std::stop_token stop) const {
  auto tree = ParseBody(text);
  if (!tree) return tl::unexpected(std::move(tree.error()));
  const BodyFields body(*tree);
  const bool chat = IsChat(*tree);
  JsonAnswer answer;
  const Rule& rule = chat ? fields_->tokenize_chat() : fields_->tokenize_text();
  if (auto checked = CheckBody(*tree, rule, options_, answer.ignored); !checked) {
    return tl::unexpected(std::move(checked.error()));
  }
  if (auto name = ReadModelName(body, model_); !name) return tl::unexpected(name.error());
  const EncodeLimits limits{kMostContexts * model_.max_model_len, stop};
  std::vector<int32_t> ids;
  if (chat) {
    auto encoded = EncodeChatBody(body, model_, options_,
                                  body.Bool("add_generation_prompt").value_or(true), limits);
    if (!encoded) return tl::unexpected(std::move(encoded.error()));
    answer.thinking = encoded->thinking.used;
    ids = std::move(encoded->ids);
  } else {
    auto encoded = model_.tokenizer->EncodePrompt(
        *body.String("prompt"), body.Bool("add_special_tokens").value_or(true), limits);
    if (!encoded) {
      return tl::unexpected(FieldError("invalid_value", "prompt", encoded.error().message));
    }
    if (!*encoded) return tl::unexpected(TooLong("prompt", limits.most_ids));
    ids = std::move(**encoded);
  }
  answer.body = TokenizeBody(model_, ids, body.Bool("return_token_strs").value_or(false));
  return answer;
}

ApiResult<JsonAnswer> OpenAiApi::Detokenize(std::string_view text) const {
  JsonAnswer answer;
  const auto tree = ParseChecked(text, fields_->detokenize(), options_, answer.ignored);
  if (!tree) return tl::unexpected(tree.error());
  const BodyFields body(*tree);
  if (auto name = ReadModelName(body, model_); !name) return tl::unexpected(name.error());
  const BodyValue& tokens = *body.Find("tokens");
  const int64_t most = kMostContexts * model_.max_model_len;
  if (std::ssize(tokens) > most) return tl::unexpected(TooLong("tokens", most));
  if (auto fault = CheckIds(tokens, "tokens", model_.vocabulary)) {
    return tl::unexpected(*std::move(fault));
  }
  answer.body = R"({"prompt":)";
  AppendJsonString(answer.body, TextOf(*model_.tokenizer, IdsOf(tokens)));
  answer.body += '}';
  return answer;
}

JsonAnswer OpenAiApi::TokenizerInfo() const {
  const auto text = [&](const Result<int32_t>& id) {
    return id ? JsonString(TextOf(*model_.tokenizer, {&*id, 1})) : std::string("null");
  };
  const Tokenizer& tokenizer = *model_.tokenizer;
  const std::string end = model_.eos_ids.empty() ? "null" : text(model_.eos_ids.front());
  const std::string jinja = model_.chat_template ? JsonString(*model_.chat_template) : "null";
  return {.body = fmt::format(
              R"({{"tokenizer_class":"PreTrainedTokenizerFast","bos_token":{},"eos_token":{},)"
              R"("pad_token":{},"model_max_length":{},"chat_template":{}}})",
              text(tokenizer.IdOf("<｜begin▁of▁sentence｜>")), end,
              text(tokenizer.IdOf("<｜▁pad▁｜>")), model_.max_model_len, jinja)};
}

ApiResult<JsonAnswer> OpenAiApi::Render(std::string_view text, std::stop_token stop) const {
  auto tree = ParseBody(text);
  if (!tree) return tl::unexpected(tree.error());
  const bool chat = IsChat(*tree);
  GenerationCall call;
  const Rule& rule = chat ? fields_->chat() : fields_->completions();
  auto resolved = CheckBody(*tree, rule, options_, call.ignored);
  if (resolved) {
    const EncodeLimits limits{model_.max_model_len, stop};
    resolved = chat ? ResolveChat(*tree, limits, call) : ResolveCompletions(*tree, limits, call);
  }
  if (!resolved) return tl::unexpected(std::move(resolved.error()));
  // A list of prompts is answered with lists.
  const BodyValue* prompt = BodyFields(*tree).Find("prompt");
  const bool several = !chat && prompt->is_array() && !prompt->front().is_number();
  return JsonAnswer{.body = RenderBody(call, model_, several),
                    .ignored = std::move(call.ignored),
                    .thinking = call.thinking};
}

}  // namespace halfbyte
