#include "text/chat.h"

#include <utility>

#include "text/chat_splitter.h"

namespace halfbyte {
namespace {

constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEndOfSentence = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";

// The prompt under construction.
class Writer {
 public:
  void Ours(std::string_view text) {
    if (text.empty()) return;
    const size_t begin = prompt_.text.size();
    prompt_.text += text;
    if (!prompt_.ours.empty() && prompt_.ours.back().end == begin) {
      prompt_.ours.back().end = prompt_.text.size();
    } else {
      prompt_.ours.push_back({begin, prompt_.text.size()});
    }
  }
  void Theirs(std::string_view text) { prompt_.text += text; }
  ChatPrompt Take() { return std::move(prompt_); }

 private:
  ChatPrompt prompt_;
};

Status CheckMessages(std::span<const ChatMessage> messages, const ChatOptions& options) {
  if (messages.empty()) return MakeError("messages is empty; a chat needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].reasoning.empty() && messages[i].role != ChatRole::kAssistant) {
      return MakeError("messages[{}] has reasoning, which only an assistant message may have", i);
    }
  }
  const bool ends_with_assistant = messages.back().role == ChatRole::kAssistant;
  if (ends_with_assistant && !options.continue_final_message && options.open_answer) {
    return MakeError(
        "messages[{}], the last one, is the assistant's; end with a user message, or set "
        "continue_final_message to have it continued",
        messages.size() - 1);
  }
  if (!ends_with_assistant && options.continue_final_message) {
    return MakeError("continue_final_message needs an assistant message at the end");
  }
  return {};
}

bool IsUserTurn(const ChatMessage& message, const ChatOptions& options) {
  return message.role == ChatRole::kUser ||
         (message.role == ChatRole::kDeveloper && options.native_developer_role);
}

class Renderer {
 public:
  Renderer(std::span<const ChatMessage> messages, const ChatOptions& options)
      : messages_(messages), options_(options) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (IsUserTurn(messages[i], options)) last_user_ = i;
    }
  }

  ChatPrompt Run(std::string_view effort_text) {
    writer_.Ours(kBegin);
    writer_.Ours(effort_text);
    for (size_t i = 0; i < messages_.size(); ++i) {
      const ChatMessage& message = messages_[i];
      if (message.role == ChatRole::kAssistant) {
        Assistant(i);
      } else if (!IsUserTurn(message, options_)) {
        writer_.Theirs(message.content);
      } else if (message.role == ChatRole::kUser || !IsOld(i)) {
        User(i);
      }
    }
    if (messages_.back().role != ChatRole::kAssistant && options_.open_answer) {
      OpenAnswer(options_.thinking);
    }
    return writer_.Take();
  }

 private:
  // Before the last user message, where reasoning and native developer messages are dropped.
  bool IsOld(size_t i) const {
    return options_.thinking && options_.drop_thinking && i < last_user_;
  }

  void User(size_t i) {
    const bool same_turn =
        i > 0 && messages_[i].role == ChatRole::kUser && messages_[i - 1].role == ChatRole::kUser;
    if (same_turn) {
      writer_.Theirs("\n\n");
    } else {
      writer_.Ours(kUser);
    }
    writer_.Theirs(messages_[i].content);
  }

  void OpenAnswer(bool thinking) {
    writer_.Ours(kAssistant);
    writer_.Ours(thinking ? kThink : kThinkEnd);
  }

  void Assistant(size_t i) {
    const bool reasoning = options_.thinking && !IsOld(i);
    OpenAnswer(reasoning);
    if (reasoning) {
      writer_.Theirs(messages_[i].reasoning);
      writer_.Ours(kThinkEnd);
    }
    writer_.Theirs(messages_[i].content);
    const bool goes_on = i + 1 == messages_.size() && options_.continue_final_message;
    if (!goes_on) writer_.Ours(kEndOfSentence);
  }

  std::span<const ChatMessage> messages_;
  const ChatOptions& options_;
  size_t last_user_ = 0;
  Writer writer_;
};

}  // namespace

Result<ChatRole> ParseChatRole(std::string_view name) {
  if (name == "system") return ChatRole::kSystem;
  if (name == "user") return ChatRole::kUser;
  if (name == "assistant") return ChatRole::kAssistant;
  if (name == "developer") return ChatRole::kDeveloper;
  return MakeError("role \"{}\" is not supported; allowed are system, user, assistant, developer",
                   name);
}

Result<ChatPrompt> RenderChat(std::span<const ChatMessage> messages, const ChatOptions& options,
                              const EffortTexts& effort_texts) {
  HB_RETURN_IF_ERROR(CheckMessages(messages, options));
  std::string effort_text;
  if (options.thinking) {
    HB_ASSIGN_OR_RETURN(effort_text, effort_texts.For(options.reasoning_effort));
  }
  return Renderer(messages, options).Run(effort_text);
}

Status CheckControlTokens(const Tokenizer& tokenizer) {
  for (const std::string_view token :
       {kBegin, kEndOfSentence, kUser, kAssistant, kThink, kThinkEnd}) {
    HB_RETURN_IF_ERROR(tokenizer.IdOf(token));
  }
  return {};
}

Result<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                        std::span<const ChatMessage> messages,
                                        const ChatOptions& options,
                                        const EffortTexts& effort_texts) {
  HB_ASSIGN_OR_RETURN(auto ids,
                      EncodeChat(tokenizer, messages, options, effort_texts, EncodeLimits()));
  return std::move(ids).value();
}

Result<std::optional<std::vector<int32_t>>> EncodeChat(const Tokenizer& tokenizer,
                                                       std::span<const ChatMessage> messages,
                                                       const ChatOptions& options,
                                                       const EffortTexts& effort_texts,
                                                       const EncodeLimits& limits) {
  HB_RETURN_IF_ERROR(CheckControlTokens(tokenizer));
  HB_ASSIGN_OR_RETURN(const ChatPrompt prompt, RenderChat(messages, options, effort_texts));
  const ByteRange all = {0, prompt.text.size()};
  return tokenizer.Encode(prompt.text,
                          options.control_tokens_in_content
                              ? std::span(&all, 1)
                              : std::span<const ByteRange>(prompt.ours),
                          limits);
}

}  // namespace halfbyte
