#include "openai/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "openai/answer_json.h"
#include "openai/api.h"
#include "openai/choice_json.h"
#include "openai/json_text.h"

namespace halfbyte {
namespace {

constexpr std::string_view kEvent = "data: ";
constexpr std::string_view kEventEnd = "\n\n";
constexpr std::string_view kDone = "data: [DONE]\n\n";

}  // namespace

class Answer::State {
 public:
  State(const ModelInfo& model, const GenerationCall& call, std::string_view id, int64_t created)
      : tokenizer_(*model.tokenizer),
        form_(call.form),
        choices_(call.requests.size() * static_cast<size_t>(form_.n)),
        prompt_logprobs_(call.requests.size()) {
    std::string object = form_.chat ? "chat.completion" : "text_completion";
    if (form_.chat && form_.stream) object += ".chunk";
    opening_ = fmt::format(
        R"({{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{},"choices":[)",
        JsonString(id), object, created, JsonString(call.model),
        JsonString(model.system_fingerprint));
  }

  void Add(std::vector<OutputEvent> events) {
    for (OutputEvent& event : events) {
      if (finished() || !Note(event)) return;
      std::optional<OutputEvent>& whole = At(event.choice).whole;
      if (whole) {
        Append(*whole, std::move(event));
      } else {
        whole = std::move(event);
      }
    }
  }

  std::string Stream(std::vector<OutputEvent> events) {
    std::string out;
    for (OutputEvent& event : events) {
      if (finished()) break;
      if (!Note(event)) {
        AppendError(out, *error_);
        break;
      }
      // What the prompt's own events tell goes with its first token.
      if (!event.token_ids.empty() || event.finish) AppendChunks(out, event);
      if (finished()) AppendEnd(out);
    }
    return out;
  }

  std::string StreamError(const ApiError& error) {
    std::string out;
    if (finished()) return out;
    error_ = error;
    AppendError(out, error);
    return out;
  }

  bool finished() const { return error_ || ended_ == choices_.size(); }
  const std::optional<ApiError>& error() const { return error_; }

  std::string Body() const {
    HB_CHECK(finished() && !error_, "the answer is not complete");
    std::string out = opening_;
    for (const Choice& choice : choices_) {
      if (&choice != &choices_.front()) out += ',';
      const OutputEvent& whole = *choice.whole;
      out += form_.chat ? ChatChoice(ContextOf(whole), whole)
                        : CompletionChoices(ContextOf(whole), whole, /*first=*/true).front();
    }
    AppendUsageMember(out);
    out += '}';
    return out;
  }

 private:
  struct Choice {
    bool started = false;  // something was sent
    Usage usage;
    std::optional<OutputEvent> whole;  // not streaming: all events so far
  };

  Choice& At(int32_t choice) { return choices_.at(static_cast<size_t>(choice)); }
  size_t PromptOf(const OutputEvent& event) const {
    return static_cast<size_t>(event.choice / form_.n);
  }
  ChoiceContext ContextOf(const OutputEvent& event) const {
    const size_t prompt = PromptOf(event);
    ChoiceContext context{.tokenizer = tokenizer_, .form = form_};
    if (!form_.prompts.empty()) context.prompt = form_.prompts[prompt];
    context.prompt_logprobs = prompt_logprobs_[prompt];
    return context;
  }

  // What every event changes, streaming or not. False at a failure.
  bool Note(OutputEvent& event) {
    At(event.choice).usage = event.usage;
    // All choices of a prompt repeat them; only its first one's events bring them.
    std::ranges::move(event.prompt_logprobs, std::back_inserter(prompt_logprobs_[PromptOf(event)]));
    event.prompt_logprobs.clear();
    if (!event.finish) return true;
    ++ended_;
    error_ = ErrorOf(*event.finish);
    return !error_;
  }

  void AppendChunks(std::string& out, const OutputEvent& event) {
    Choice& choice = At(event.choice);
    const ChoiceContext context = ContextOf(event);
    const auto told = form_.chat ? ChatDeltas(context, event, !choice.started)
                                 : CompletionChoices(context, event, !choice.started);
    choice.started = choice.started || !told.empty();
    for (const std::string& each : told) {
      out += kEvent;
      out += opening_;
      out += each;
      if (form_.continuous_usage) {
        AppendUsageMember(out);
      } else {
        out += form_.include_usage ? R"(],"usage":null)" : "]";
      }
      out += '}';
      out += kEventEnd;
    }
  }

  void AppendEnd(std::string& out) const {
    if (form_.include_usage) {
      out += kEvent;
      out += opening_;
      AppendUsageMember(out);
      out += '}';
      out += kEventEnd;
    }
    out += kDone;
  }

  static void AppendError(std::string& out, const ApiError& error) {
    out += kEvent;
    out += error.Json();
    out += kEventEnd;
    out += kDone;
  }

  // Closes the list of choices, too.
  void AppendUsageMember(std::string& out) const {
    Usage total;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Usage& usage = choices_[i].usage;
      total.completion_tokens += usage.completion_tokens;
      total.reasoning_tokens += usage.reasoning_tokens;
      if (i % static_cast<size_t>(form_.n) != 0) continue;  // each prompt once
      total.prompt_tokens += usage.prompt_tokens;
      total.cached_tokens += usage.cached_tokens;
    }
    out += R"(],"usage":)";
    AppendUsage(out, total);
  }

  const Tokenizer& tokenizer_;
  const AnswerForm form_;
  std::string opening_;  // of the body and of every chunk, up to its choices
  std::vector<Choice> choices_;
  std::vector<std::vector<std::optional<LogprobEntry>>> prompt_logprobs_;  // by prompt
  size_t ended_ = 0;
  std::optional<ApiError> error_;
};

Answer::Answer(const ModelInfo& model, const GenerationCall& call, std::string_view id,
               int64_t created)
    : state_(std::make_unique<State>(model, call, id, created)) {}
Answer::~Answer() = default;
Answer::Answer(Answer&&) noexcept = default;

void Answer::Add(std::vector<OutputEvent> events) { state_->Add(std::move(events)); }
std::string Answer::Stream(std::vector<OutputEvent> events) {
  return state_->Stream(std::move(events));
}
std::string Answer::StreamError(const ApiError& error) { return state_->StreamError(error); }
bool Answer::finished() const { return state_->finished(); }
const std::optional<ApiError>& Answer::error() const { return state_->error(); }
std::string Answer::Body() const { return state_->Body(); }

}  // namespace halfbyte
