#include "openai/chat_prompt.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "openai/generation_fields.h"
#include "text/chat.h"

namespace halfbyte {
namespace {

tl::unexpected<ApiError> Invalid(std::string param, std::string message) {
  return tl::unexpected(FieldError("invalid_value", std::move(param), std::move(message)));
}

// A string, or text parts joined by line breaks.
std::string TextOf(const BodyValue& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) text += '\n';
    text += content[i].at("text").get_ref<const std::string&>();
  }
  return text;
}

ApiResult<ChatMessage> ReadMessage(const BodyFields& fields, const std::string& path) {
  // The table allows no other role.
  ChatMessage message{.role = ParseChatRole(*fields.String("role")).value()};
  const bool assistant = message.role == ChatRole::kAssistant;
  if (const BodyValue* content = fields.Find("content"); content != nullptr) {
    message.content = TextOf(*content);
  } else if (!assistant) {
    return tl::unexpected(
        FieldError("missing_field", path + ".content",
                   fmt::format("{}.content is missing; only an assistant's may be", path)));
  }
  const auto reasoning = fields.String("reasoning_content");
  const auto same = fields.String("reasoning");
  if (reasoning && same && *reasoning != *same) {
    return Invalid(
        path + ".reasoning",
        fmt::format("{0}.reasoning differs from {0}.reasoning_content; keep one of them", path));
  }
  message.reasoning = reasoning.value_or(same.value_or(""));
  if (!assistant && !message.reasoning.empty()) {
    const char* name = reasoning ? "reasoning_content" : "reasoning";
    return Invalid(fmt::format("{}.{}", path, name),
                   fmt::format("{}.{} is there, but only an assistant reasons", path, name));
  }
  return message;
}

ApiResult<std::vector<ChatMessage>> ReadMessages(const BodyFields& body) {
  std::vector<ChatMessage> messages;
  for (const BodyValue& each : *body.Find("messages")) {
    auto message = ReadMessage(BodyFields(each), JoinPath("messages", messages.size()));
    if (!message) return tl::unexpected(std::move(message.error()));
    messages.push_back(*std::move(message));
  }
  return messages;
}

std::optional<ApiError> CheckEnd(const std::vector<ChatMessage>& messages,
                                 const ChatOptions& options) {
  const bool assistant = messages.back().role == ChatRole::kAssistant;
  const std::string last = JoinPath("messages", messages.size() - 1);
  if (options.continue_final_message && !assistant) {
    return FieldError(
        "invalid_value", "continue_final_message",
        fmt::format("continue_final_message is true, but {} is not the assistant's", last));
  }
  if (assistant && !options.continue_final_message && options.open_answer) {
    return FieldError("invalid_value", last + ".role",
                      fmt::format("{}, the last one, is the assistant's; end with a user's"
                                  " message, or set continue_final_message to true to "
                                  "have it continued",
                                  last));
  }
  return std::nullopt;
}

bool DropsThinking(const BodyFields& body) {
  const BodyValue* arguments = body.Find("chat_template_kwargs");
  if (arguments == nullptr) return true;
  return BodyFields(*arguments).Bool("drop_thinking").value_or(true);
}

// What EncodeChat says when it fails: the body was right, the model lacks something.
ApiError ErrorOf(const Error& error, const ThinkingAsked& thinking) {
  constexpr std::string_view kMissing = "prompt_data_missing: ";
  if (error.message.starts_with(kMissing)) {
    return {.code = "prompt_data_missing",
            .message = error.message.substr(kMissing.size()),
            .param = thinking.effort_path};
  }
  return {.code = "invalid_value", .message = error.message, .param = "messages"};
}

}  // namespace

ApiResult<EncodedChat> EncodeChatBody(const BodyFields& body, const ModelInfo& model,
                                      const ApiOptions& options, bool open_answer,
                                      const EncodeLimits& limits) {
  auto messages = ReadMessages(body);
  if (!messages) return tl::unexpected(std::move(messages.error()));
  auto thinking = ReadThinking(body, model.chat);
  if (!thinking) return tl::unexpected(std::move(thinking.error()));
  const ChatOptions chat{
      .thinking = thinking->on,
      .reasoning_effort = thinking->effort,
      .drop_thinking = DropsThinking(body),
      .continue_final_message = body.Bool("continue_final_message").value_or(false),
      .native_developer_role = options.native_developer_role,
      .open_answer = open_answer,
      .control_tokens_in_content = options.allow_control_tokens_in_content,
  };
  if (auto fault = CheckEnd(*messages, chat)) return tl::unexpected(*std::move(fault));
  auto ids = EncodeChat(*model.tokenizer, *messages, chat, model.chat.wording, limits);
  if (!ids) return tl::unexpected(ErrorOf(ids.error(), *thinking));
  if (!*ids) return tl::unexpected(TooLong("messages", limits.most_ids));
  return EncodedChat{.ids = **std::move(ids),
                     .thinking = *std::move(thinking),
                     .continues = chat.continue_final_message};
}

}  // namespace halfbyte
