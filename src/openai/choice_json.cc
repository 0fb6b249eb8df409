#include "openai/choice_json.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "openai/answer_json.h"
#include "openai/json_text.h"

namespace halfbyte {
namespace {

void AppendIndex(std::string& out, const OutputEvent& event) {
  fmt::format_to(std::back_inserter(out), R"({{"index":{})", event.choice);
}

void AppendFinish(std::string& out, const std::optional<Finish>& finish) {
  out += R"(,"finish_reason":)";
  if (!finish) {
    out += R"(null,"stop_reason":null)";
    return;
  }
  AppendJsonString(out, Name(finish->reason));
  out += R"(,"stop_reason":)";
  if (finish->stop_string) {
    AppendJsonString(out, *finish->stop_string);
  } else if (finish->stop_token) {
    fmt::format_to(std::back_inserter(out), "{}", *finish->stop_token);
  } else {
    out += "null";
  }
}

void AppendTokenIds(std::string& out, const ChoiceContext& context, const OutputEvent& event,
                    bool first) {
  if (!context.form.return_token_ids) return;
  if (first) {
    out += R"(,"prompt_token_ids":)";
    AppendIds(out, context.prompt);
  }
  out += R"(,"token_ids":)";
  AppendIds(out, event.token_ids);
}

// "reasoning_content":"...","reasoning":"..." as the form wants it; `text` is JSON.
void AppendReasoning(std::string& out, ReasoningField field, std::string_view text) {
  if (field != ReasoningField::kReasoning) {
    out += R"("reasoning_content":)";
    out += text;
  }
  if (field == ReasoningField::kBoth) out += ',';
  if (field != ReasoningField::kReasoningContent) {
    out += R"("reasoning":)";
    out += text;
  }
}

using Entries = std::span<const LogprobEntry>;

void AppendChatLogprobs(std::string& out, const ChoiceContext& context, Entries reasoning,
                        Entries content) {
  out += R"(,"logprobs":)";
  if (!context.form.logprobs) {
    out += "null";
    return;
  }
  out += R"({"content":)";
  AppendChatLogprobs(out, context.tokenizer, content);
  out += R"(,"reasoning_content":)";
  AppendChatLogprobs(out, context.tokenizer, reasoning);
  out += R"(,"refusal":null})";
}

bool ShowsReasoning(const AnswerForm& form) { return form.thinking && form.include_reasoning; }

// The chunks of one chat event, one after another.
class DeltaWriter {
 public:
  DeltaWriter(const ChoiceContext& context, const OutputEvent& event, bool first)
      : context_(context), event_(event), first_(first) {}

  void Write(std::string_view delta, Entries reasoning, Entries content, bool last = false) {
    std::string out;
    AppendIndex(out, event_);
    out += R"(,"delta":{)";
    out += delta;
    out += '}';
    if (reasoning.empty() && content.empty()) {
      out += R"(,"logprobs":null)";
    } else {
      AppendChatLogprobs(out, context_, reasoning, content);
    }
    AppendFinish(out, last ? event_.finish : std::nullopt);
    // The event's ids go with its first chunk.
    if (choices_.empty()) AppendTokenIds(out, context_, event_, first_);
    out += '}';
    choices_.push_back(std::move(out));
  }

  std::vector<std::string> Take() { return std::move(choices_); }
  bool empty() const { return choices_.empty(); }

 private:
  const ChoiceContext& context_;
  const OutputEvent& event_;
  const bool first_;
  std::vector<std::string> choices_;
};

}  // namespace

std::vector<std::string> CompletionChoices(const ChoiceContext& context, const OutputEvent& event,
                                           bool first) {
  const AnswerForm& form = context.form;
  const bool echo = first && form.echo;
  const bool tells = event.finish || !event.content.empty() || !event.content_logprobs.empty() ||
                     echo || form.return_token_ids;
  if (!tells) return {};
  std::string out;
  AppendIndex(out, event);
  out += R"(,"text":)";
  if (echo) {
    AppendJsonString(out, TextOf(context.tokenizer, context.prompt) + event.content);
  } else {
    AppendJsonString(out, event.content);
  }
  out += R"(,"logprobs":)";
  if (form.logprobs) {
    ReportedLogprobs logprobs{.tokens = event.content_logprobs};
    if (echo) {
      logprobs.prompt_ids = context.prompt;
      logprobs.prompt = context.prompt_logprobs;
    }
    AppendCompletionLogprobs(out, context.tokenizer, logprobs);
  } else {
    out += "null";
  }
  AppendFinish(out, event.finish);
  AppendTokenIds(out, context, event, first);
  out += '}';
  return {std::move(out)};
}

std::vector<std::string> ChatDeltas(const ChoiceContext& context, const OutputEvent& event,
                                    bool first) {
  DeltaWriter writer(context, event, first);
  if (first) writer.Write(R"("role":"assistant","content":"")", {}, {});
  if (ShowsReasoning(context.form) &&
      !(event.reasoning.empty() && event.reasoning_logprobs.empty())) {
    std::string delta;
    AppendReasoning(delta, context.form.reasoning_field, JsonString(event.reasoning));
    writer.Write(delta, event.reasoning_logprobs, {});
  }
  const bool content = !event.content.empty() || !event.content_logprobs.empty();
  const bool only_ids = context.form.return_token_ids && writer.empty() && !event.finish;
  if (content || only_ids) {
    std::string delta = R"("content":)";
    AppendJsonString(delta, event.content);
    writer.Write(delta, {}, event.content_logprobs);
  }
  if (event.finish) writer.Write("", {}, {}, /*last=*/true);
  return writer.Take();
}

std::string ChatChoice(const ChoiceContext& context, const OutputEvent& whole) {
  const AnswerForm& form = context.form;
  const bool reasoning = ShowsReasoning(form);
  std::string out;
  AppendIndex(out, whole);
  out += R"(,"message":{"role":"assistant","content":)";
  AppendJsonString(out, whole.content);
  out += ',';
  AppendReasoning(out, form.reasoning_field, reasoning ? JsonString(whole.reasoning) : "null");
  out += R"(,"refusal":null})";
  AppendChatLogprobs(out, context, reasoning ? Entries(whole.reasoning_logprobs) : Entries(),
                     whole.content_logprobs);
  AppendFinish(out, whole.finish);
  AppendTokenIds(out, context, whole, /*first=*/true);
  out += '}';
  return out;
}

}  // namespace halfbyte
