// A conversation as a DeepSeek-V4 prompt (deepseek-v4.md §6.2, server.md §3.3):
//
//   <begin> [effort text] system text <User> user text <Assistant> </think> answer <end> ...
//
// The result is one string plus the byte ranges in it that are ours. Control tokens are recognised
// in those only, so a message that spells <｜Assistant｜> gives ordinary tokens and cannot forge a
// turn. Not here: latest_reminder, task tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_token_finder.h"
#include "text/chat_wording.h"
#include "text/tokenizer.h"

namespace halfbyte {

enum class ChatRole { kSystem, kUser, kAssistant, kDeveloper, kTool };

// Error naming the role and the allowed ones.
Result<ChatRole> ParseChatRole(std::string_view name);

struct ChatToolCall {
  std::string id;  // by which a result names it; may be empty
  std::string name;
  std::string arguments;  // a JSON object, or any text, which is one argument then
};

struct ChatMessage {
  ChatRole role;
  std::string content;                        // may be empty; any bytes
  std::string reasoning;                      // of an assistant; what stood before its </think>
  std::vector<ChatToolCall> tool_calls = {};  // of an assistant
  std::string tool_call_id = {};              // of a tool: the call that its content answers
};

struct ChatOptions {
  bool thinking = true;
  ReasoningEffort reasoning_effort = ReasoningEffort::kHigh;  // matters while thinking only
  // Reasoning of turns before the last user message is left out, as the model was trained.
  bool drop_thinking = true;
  // The last message is the assistant's: the model goes on where its content ends.
  bool continue_final_message = false;
  // A developer message as the model's own role, a user turn that is dropped with old reasoning.
  // Off, it is a system message, so that its instructions stay.
  bool native_developer_role = false;
  // Ends with the opening of an answer. Off, the messages are all; a final assistant message is a
  // finished turn then, unless it is continued.
  bool open_answer = true;
  // What the model may call, and the JSON schema that its answer must follow: sections of the
  // instructions. With tools no reasoning is dropped.
  std::vector<ToolSchema> tools = {};
  std::optional<Json> response_format = {};
  // Control tokens are recognised in messages, too: what the reference library does.
  bool control_tokens_in_content = false;
};

struct ChatPrompt {
  std::string text;
  std::vector<ByteRange> ours;  // in order, disjoint
};

// Rules where deepseek-v4.md §6.2 is silent: every assistant turn is opened by the assistant token,
// whatever stands before it, so a conversation may start with one; consecutive user messages are
// one turn, joined by a blank line; a conversation that ends with a system message still gets the
// opening of the answer; an assistant's reasoning is ignored where no reasoning is rendered.
// Sections stand in the first message if that is a system's or developer's, else before it. Results
// of tools are part of the user's turn, those of one turn in the order of the calls.
// Errors: no messages; a final assistant message without continue_final_message where an answer is
// to be opened, or that option without one; reasoning or tool calls on another role; a tool's
// message whose call the assistant before has not made; an effort or section whose text is missing
// ("prompt_data_missing: ...").
Result<ChatPrompt> RenderChat(std::span<const ChatMessage> messages, const ChatOptions& options,
                              const ChatWording& wording);

// Error naming the control token of chats that the tokenizer lacks.
Status CheckControlTokens(const Tokenizer& tokenizer);

// The same as token ids. Errors: those of both above.
Result<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                        std::span<const ChatMessage> messages,
                                        const ChatOptions& options, const ChatWording& wording);
// The same within limits; none: more ids than these allow (text/tokenizer.h).
Result<std::optional<std::vector<int32_t>>> EncodeChat(const Tokenizer& tokenizer,
                                                       std::span<const ChatMessage> messages,
                                                       const ChatOptions& options,
                                                       const ChatWording& wording,
                                                       const EncodeLimits& limits);

}  // namespace halfbyte
