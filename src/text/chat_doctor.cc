#include "text/chat_doctor.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "text/chat.h"
#include "text/encoder_file.h"
#include "text/model_defaults.h"
#include "text/tokenizer.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;
using Outcome = ChatGolden::Outcome;

constexpr std::string_view kInput = "test_input_";
// Of a message, beside its texts: what the encoder knows and chat.h does not.
constexpr std::string_view kNotBuilt[] = {"task", "response_format", "content_blocks", "wo_eos"};

std::string_view NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kEqual:
      return "equal";
    case Outcome::kDiffers:
      return "differs";
    case Outcome::kNotReplayed:
      return "not replayed";
  }
  return "";
}

struct Conversation {
  std::vector<ChatMessage> messages;
  std::vector<ToolSchema> tools;
  std::optional<std::string> not_built;  // what of it is not
};

// The functions of {"type": "function", "function": {...}}.
Result<std::vector<Json>> Functions(const JsonObject& object, std::string_view field) {
  std::vector<Json> functions;
  HB_ASSIGN_OR_RETURN(const auto list, object.Array(field));
  if (!list) return functions;
  for (const Json& each : **list) {
    HB_ASSIGN_OR_RETURN(const JsonObject entry, JsonObject::Of(each, object.Describe(field)));
    HB_ASSIGN_OR_RETURN(const auto function, entry.Object("function"));
    if (!function) return MakeError("{} is missing", entry.Describe("function"));
    functions.push_back(function->json());
    if (entry.Has("id")) functions.back()["id"] = each.at("id");
  }
  return functions;
}

Result<std::vector<ChatToolCall>> ReadToolCalls(const JsonObject& object) {
  std::vector<ChatToolCall> calls;
  HB_ASSIGN_OR_RETURN(const auto functions, Functions(object, "tool_calls"));
  for (const Json& each : functions) {
    HB_ASSIGN_OR_RETURN(const JsonObject call, JsonObject::Of(each, object.Describe("tool_calls")));
    HB_ASSIGN_OR_RETURN(const auto id, call.String("id"));
    HB_ASSIGN_OR_RETURN(const auto name, call.String("name"));
    HB_ASSIGN_OR_RETURN(const auto arguments, call.String("arguments"));
    calls.push_back({id.value_or(""), name.value_or(""), arguments.value_or("")});
  }
  return calls;
}

Result<ChatMessage> ReadMessage(const JsonObject& object, Conversation& conversation) {
  ChatMessage message{.role = ChatRole::kUser};
  HB_ASSIGN_OR_RETURN(const auto role, object.String("role"));
  if (!role) return MakeError("{} is missing", object.Describe("role"));
  if (const auto known = ParseChatRole(*role)) {
    message.role = *known;
  } else {
    conversation.not_built = fmt::format("the role {}", *role);
  }
  for (const std::string_view field : kNotBuilt) {
    if (object.Has(field)) conversation.not_built = std::string(field);
  }
  if (conversation.not_built) return message;
  HB_ASSIGN_OR_RETURN(const auto content, object.String("content"));
  HB_ASSIGN_OR_RETURN(const auto reasoning, object.String("reasoning"));
  HB_ASSIGN_OR_RETURN(const auto reasoning_content, object.String("reasoning_content"));
  message.content = content.value_or("");
  message.reasoning = reasoning_content.value_or(reasoning.value_or(""));
  HB_ASSIGN_OR_RETURN(message.tool_calls, ReadToolCalls(object));
  HB_ASSIGN_OR_RETURN(const auto tool_call_id, object.String("tool_call_id"));
  message.tool_call_id = tool_call_id.value_or("");
  HB_ASSIGN_OR_RETURN(std::vector<ToolSchema> tools, Functions(object, "tools"));
  if (!tools.empty()) conversation.tools = std::move(tools);
  return message;
}

// A list of messages, or an object with one and perhaps tools.
Result<Conversation> ReadConversation(const fs::path& path) {
  HB_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  Conversation conversation;
  const Json* messages = &json;
  if (json.is_object()) {
    HB_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, path.string()));
    HB_ASSIGN_OR_RETURN(const auto list, object.Array("messages"));
    HB_ASSIGN_OR_RETURN(conversation.tools, Functions(object, "tools"));
    messages = list.value_or(nullptr);
  }
  if (messages == nullptr || !messages->is_array()) {
    return MakeError("{}: it is neither a list of messages nor an object with one", path.string());
  }
  for (const Json& each : *messages) {
    if (conversation.not_built) break;
    HB_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(each, path.string(), "message"));
    HB_ASSIGN_OR_RETURN(ChatMessage message, ReadMessage(object, conversation));
    conversation.messages.push_back(std::move(message));
  }
  return conversation;
}

// Where two prompts part, with what each says there.
std::string Difference(std::string_view expected, std::string_view rendered) {
  const auto at =
      static_cast<size_t>(std::ranges::mismatch(expected, rendered).in1 - expected.begin());
  const auto quote = [&](std::string_view text) {
    return Json(text.substr(std::min(at, text.size()), 40))
        .dump(-1, ' ', true, Json::error_handler_t::replace);
  };
  return fmt::format("from byte {}: {} must be {}", at, quote(rendered), quote(expected));
}

Result<ChatGolden> Replay(const fs::path& input, const ChatWording& wording) {
  ChatGolden golden{.name = input.filename().string()};
  const std::string number = input.stem().string().substr(kInput.size());
  HB_ASSIGN_OR_RETURN(
      const std::string expected,
      ReadTextFile(input.parent_path() / fmt::format("test_output_{}.txt", number)));
  HB_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(input));
  if (conversation.not_built) {
    golden.outcome = Outcome::kNotReplayed;
    golden.detail = "it has " + *conversation.not_built;
    return golden;
  }
  // The case does not say whether it thinks; only prompts that do have this token.
  const ChatOptions options{
      .thinking = expected.find("<think>") != std::string::npos,
      .reasoning_effort = ReasoningEffort::kLow,  // adds nothing in either profile
      .native_developer_role = true,
      .open_answer = !conversation.messages.empty() &&
                     conversation.messages.back().role != ChatRole::kAssistant &&
                     conversation.messages.back().role != ChatRole::kSystem,
      .tools = conversation.tools};
  const auto prompt = RenderChat(conversation.messages, options, wording);
  if (!prompt) return MakeError("{}: {}", input.string(), prompt.error().message);
  if (prompt->text != expected) {
    golden.outcome = Outcome::kDiffers;
    golden.detail = Difference(expected, prompt->text);
  }
  return golden;
}

}  // namespace

bool ChatDiagnosis::healthy() const {
  return std::ranges::count(goldens, Outcome::kDiffers, &ChatGolden::outcome) == 0;
}

Result<ChatDiagnosis> DiagnoseChat(const fs::path& model_dir) {
  HB_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(model_dir / "tokenizer.json"));
  HB_RETURN_IF_ERROR(CheckControlTokens(tokenizer));
  HB_ASSIGN_OR_RETURN(ModelDefaults defaults, ReadModelDefaults(model_dir));
  ChatDiagnosis diagnosis{.wording = std::move(defaults.wording)};
  const fs::path tests = (model_dir / kEncoderFile).parent_path() / "tests";
  std::error_code error;
  std::vector<fs::path> inputs;
  for (const auto& entry : fs::directory_iterator(tests, error)) {
    const fs::path& path = entry.path();
    if (path.filename().string().starts_with(kInput) && path.extension() == ".json") {
      inputs.push_back(path);
    }
  }
  std::ranges::sort(inputs);
  for (const fs::path& input : inputs) {
    HB_ASSIGN_OR_RETURN(ChatGolden golden, Replay(input, diagnosis.wording));
    diagnosis.goldens.push_back(std::move(golden));
  }
  return diagnosis;
}

std::string DiagnosisText(const ChatDiagnosis& diagnosis) {
  std::string text = fmt::format("wording: {}\n", diagnosis.wording.efforts.Describe());
  const SectionTexts& sections = diagnosis.wording.sections;
  text += fmt::format("sections: tools {}, response format {}\n", sections.tools ? "yes" : "no",
                      sections.response_format ? "yes" : "no");
  if (diagnosis.goldens.empty()) text += "golden cases: none lie beside an encoder\n";
  for (const ChatGolden& golden : diagnosis.goldens) {
    text += fmt::format("{}: {}{}{}\n", golden.name, NameOf(golden.outcome),
                        golden.detail.empty() ? "" : ": ", golden.detail);
  }
  return text;
}

Json DiagnosisJson(const ChatDiagnosis& diagnosis) {
  const EffortTexts& wording = diagnosis.wording.efforts;
  const SectionTexts& sections = diagnosis.wording.sections;
  Json goldens = Json::array();
  for (const ChatGolden& golden : diagnosis.goldens) {
    goldens.push_back(
        {{"name", golden.name}, {"outcome", NameOf(golden.outcome)}, {"detail", golden.detail}});
  }
  return {{"wording",
           {{"profile", Name(wording.profile)},
            {"source", wording.source},
            {"sha256", wording.sha256},
            {"tools", sections.tools.has_value()},
            {"response_format", sections.response_format.has_value()}}},
          {"goldens", std::move(goldens)}};
}

}  // namespace halfbyte
