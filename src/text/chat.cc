#include "text/chat.h"

#include <fmt/format.h>

#include <algorithm>
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
  void Section(const std::vector<SectionPiece>& pieces) {
    Theirs("\n\n");
    for (const SectionPiece& piece : pieces) piece.ours ? Ours(piece.text) : Theirs(piece.text);
  }
  ChatPrompt Take() { return std::move(prompt_); }

 private:
  ChatPrompt prompt_;
};

// Which of the calls of the assistant before it a tool's message answers.
std::optional<size_t> CallOrder(std::span<const ChatMessage> messages, size_t i) {
  const std::string& id = messages[i].tool_call_id;
  while (i > 0 && messages[i - 1].role != ChatRole::kAssistant) --i;
  if (i == 0) return std::nullopt;
  const std::vector<ChatToolCall>& calls = messages[i - 1].tool_calls;
  const auto call = std::ranges::find(calls, id, &ChatToolCall::id);
  if (call == calls.end()) return std::nullopt;
  return static_cast<size_t>(call - calls.begin());
}

Status CheckMessages(std::span<const ChatMessage> messages, const ChatOptions& options) {
  if (messages.empty()) return MakeError("messages is empty; a chat needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].reasoning.empty() && messages[i].role != ChatRole::kAssistant) {
      return MakeError("messages[{}] has reasoning, which only an assistant message may have", i);
    }
    if (!messages[i].tool_calls.empty() && messages[i].role != ChatRole::kAssistant) {
      return MakeError("messages[{}] has tool calls, which only an assistant message may have", i);
    }
    if (messages[i].role == ChatRole::kTool && !CallOrder(messages, i)) {
      return MakeError(
          "messages[{}] answers the tool call \"{}\", which the assistant before it has not made",
          i, messages[i].tool_call_id);
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
  return message.role == ChatRole::kUser || message.role == ChatRole::kTool ||
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

  Result<ChatPrompt> Run(const ChatWording& wording) {
    writer_.Ours(kBegin);
    if (options_.thinking) {
      HB_ASSIGN_OR_RETURN(const std::string effort, wording.efforts.For(options_.reasoning_effort));
      writer_.Ours(effort);
    }
    const ChatRole first = messages_.front().role;
    const bool instructed = first == ChatRole::kSystem || first == ChatRole::kDeveloper;
    if (!instructed) HB_RETURN_IF_ERROR(Sections(wording));
    for (size_t i = 0; i < messages_.size();) {
      const ChatMessage& message = messages_[i];
      if (message.role == ChatRole::kUser || message.role == ChatRole::kTool) {
        i = UserTurn(i);
        continue;
      }
      if (message.role == ChatRole::kAssistant) {
        Assistant(i);
      } else if (!IsUserTurn(message, options_)) {
        writer_.Theirs(message.content);
      } else if (!IsOld(i)) {
        writer_.Ours(kUser);
        writer_.Theirs(message.content);
      }
      if (i == 0 && instructed) HB_RETURN_IF_ERROR(Sections(wording));
      ++i;
    }
    if (messages_.back().role != ChatRole::kAssistant && options_.open_answer) {
      OpenAnswer(options_.thinking);
    }
    return writer_.Take();
  }

 private:
  // Before the last user message, where reasoning and native developer messages are dropped.
  bool IsOld(size_t i) const {
    return options_.thinking && options_.drop_thinking && options_.tools.empty() && i < last_user_;
  }

  Status Sections(const ChatWording& wording) {
    if (!options_.tools.empty()) {
      HB_ASSIGN_OR_RETURN(const auto section, ToolsSection(wording.sections, options_.tools));
      writer_.Section(section);
    }
    if (options_.response_format) {
      HB_ASSIGN_OR_RETURN(const auto section,
                          ResponseFormatSection(wording.sections, *options_.response_format));
      writer_.Section(section);
    }
    return {};
  }

  // Messages of the user and of tools from `begin` on; returns where the turn ends.
  size_t UserTurn(size_t begin) {
    std::vector<size_t> results;  // of tools, in the order of their calls
    size_t end = begin;
    for (; end < messages_.size(); ++end) {
      if (messages_[end].role == ChatRole::kTool) {
        results.push_back(end);
      } else if (messages_[end].role != ChatRole::kUser) {
        break;
      }
    }
    std::ranges::stable_sort(results, {}, [&](size_t i) { return *CallOrder(messages_, i); });
    writer_.Ours(kUser);
    auto result = results.begin();
    for (size_t i = begin; i < end; ++i) {
      if (i > begin) writer_.Theirs("\n\n");
      if (messages_[i].role == ChatRole::kUser) {
        writer_.Theirs(messages_[i].content);
      } else {
        writer_.Theirs("<tool_result>" + messages_[*result++].content + "</tool_result>");
      }
    }
    return end;
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
    if (!messages_[i].tool_calls.empty()) ToolCalls(messages_[i].tool_calls);
    const bool goes_on = i + 1 == messages_.size() && options_.continue_final_message;
    if (!goes_on) writer_.Ours(kEndOfSentence);
  }

  // <D tool_calls> and so on, as the model writes them.
  void Mark(std::string_view opener, std::string_view tag) {
    writer_.Theirs(opener);
    writer_.Ours(kDsml[0]);
    writer_.Theirs(tag);
  }

  void ToolCalls(const std::vector<ChatToolCall>& calls) {
    Mark("\n\n<", "tool_calls>\n");
    for (const ChatToolCall& call : calls) {
      Mark("<", "invoke name=\"" + call.name + "\">\n");
      Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
      if (!arguments.is_object()) arguments = Json{{"arguments", call.arguments}};
      for (const auto& [key, value] : arguments.items()) {
        if (&value != &arguments.front()) writer_.Theirs("\n");
        const bool string = value.is_string();
        Mark("<", fmt::format("parameter name=\"{}\" string=\"{}\">", key, string));
        writer_.Theirs(string ? value.get_ref<const std::string&>() : PythonJson(value));
        Mark("</", "parameter>");
      }
      writer_.Theirs("\n");
      Mark("</", "invoke>\n");
    }
    Mark("</", "tool_calls>");
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
  if (name == "tool") return ChatRole::kTool;
  return MakeError(
      "role \"{}\" is not supported; allowed are system, user, assistant, developer, tool", name);
}

Result<ChatPrompt> RenderChat(std::span<const ChatMessage> messages, const ChatOptions& options,
                              const ChatWording& wording) {
  HB_RETURN_IF_ERROR(CheckMessages(messages, options));
  return Renderer(messages, options).Run(wording);
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
                                        const ChatOptions& options, const ChatWording& wording) {
  HB_ASSIGN_OR_RETURN(auto ids, EncodeChat(tokenizer, messages, options, wording, EncodeLimits()));
  return std::move(ids).value();
}

Result<std::optional<std::vector<int32_t>>> EncodeChat(const Tokenizer& tokenizer,
                                                       std::span<const ChatMessage> messages,
                                                       const ChatOptions& options,
                                                       const ChatWording& wording,
                                                       const EncodeLimits& limits) {
  HB_RETURN_IF_ERROR(CheckControlTokens(tokenizer));
  HB_ASSIGN_OR_RETURN(const ChatPrompt prompt, RenderChat(messages, options, wording));
  const ByteRange all = {0, prompt.text.size()};
  return tokenizer.Encode(prompt.text,
                          options.control_tokens_in_content
                              ? std::span(&all, 1)
                              : std::span<const ByteRange>(prompt.ours),
                          limits);
}

}  // namespace halfbyte
