// Golden shapes of answers and streams, and the law that a stream's pieces are the whole.
#include "openai/answer.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "openai/openai_test_model.h"

namespace halfbyte {
namespace {

using Value = nlohmann::json;

constexpr int64_t kCreated = 1764446400;

const OpenAiApi& Api() {
  static const OpenAiApi api(TestModel(), {});
  return api;
}

GenerationCall ChatCall(const Value& more = Value::object()) {
  Value body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  body.update(more);
  auto call = Api().ParseChat(body.dump());
  EXPECT_TRUE(call) << (call ? "" : call.error().Json());
  return *std::move(call);
}

GenerationCall CompletionCall(const Value& more = Value::object()) {
  Value body = {{"prompt", "Hi"}};
  body.update(more);
  auto call = Api().ParseCompletions(body.dump());
  EXPECT_TRUE(call) << (call ? "" : call.error().Json());
  return *std::move(call);
}

OutputEvent Event(int32_t choice, std::string reasoning, std::string content,
                  std::vector<int32_t> ids = {100}) {
  return {.choice = choice,
          .content = std::move(content),
          .reasoning = std::move(reasoning),
          .token_ids = std::move(ids)};
}

OutputEvent End(int32_t choice, Finish finish, Usage usage = {}) {
  return {.choice = choice, .token_ids = {1}, .usage = usage, .finish = std::move(finish)};
}

// The JSON of each "data: " event but [DONE], which has to be the last.
std::vector<Value> Chunks(std::string_view stream) {
  std::vector<Value> chunks;
  bool done = false;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos);
    const std::string_view line = stream.substr(0, end);
    EXPECT_TRUE(line.starts_with("data: ")) << line;
    EXPECT_EQ(line.find('\n'), std::string_view::npos);
    EXPECT_FALSE(done) << line;
    done = line == "data: [DONE]";
    if (!done) chunks.push_back(Value::parse(line.substr(6)));
    stream.remove_prefix(end + 2);
  }
  EXPECT_TRUE(done);
  return chunks;
}

TEST(Answer, OfAChatHasTheShapeOfTheApi) {
  const GenerationCall call = ChatCall();
  Answer answer(Api().model(), call, "chatcmpl-1", kCreated);
  std::vector<OutputEvent> events = {
      Event(0, "Hm. ", ""), Event(0, "", "Hel"), Event(0, "", "lo\n\"\xF0\x9F\x99\x82\""),
      End(0, {},
          {.prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 4, .reasoning_tokens = 1})};
  answer.Add(events);
  ASSERT_TRUE(answer.finished());
  EXPECT_EQ(Value::parse(answer.Body()), Value::parse(R"({
      "id": "chatcmpl-1", "object": "chat.completion", "created": 1764446400, "model": "tiny",
      "system_fingerprint": "hb-0123456789ab",
      "choices": [{"index": 0,
                   "message": {"role": "assistant", "content": "Hello\n\"\ud83d\ude42\"",
                               "reasoning_content": "Hm. ", "reasoning": "Hm. ", "refusal": null},
                   "logprobs": null, "finish_reason": "stop", "stop_reason": null}],
      "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 1}}})"));
}

TEST(Answer, StreamsAChatInTheOrderOfTheApi) {
  const GenerationCall call =
      ChatCall({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  Answer answer(Api().model(), call, "chatcmpl-1", kCreated);
  OutputEvent both = Event(0, "Hm.", "Yes");
  both.finish = Finish{.reason = FinishReason::kLength};
  both.usage = {.prompt_tokens = 5, .completion_tokens = 2};
  std::string stream = answer.Stream({Event(0, "", "")});
  stream += answer.Stream({});
  stream += answer.Stream({both});
  EXPECT_TRUE(answer.finished());
  const auto chunks = Chunks(stream);
  ASSERT_EQ(chunks.size(), 5U);
  EXPECT_EQ(chunks[0], Value::parse(R"({
      "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1764446400,
      "model": "tiny", "system_fingerprint": "hb-0123456789ab",
      "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                   "finish_reason": null, "stop_reason": null}],
      "usage": null})"));
  EXPECT_EQ(chunks[1]["choices"][0]["delta"],
            Value::parse(R"({"reasoning_content": "Hm.", "reasoning": "Hm."})"));
  EXPECT_EQ(chunks[2]["choices"][0]["delta"], Value::parse(R"({"content": "Yes"})"));
  EXPECT_EQ(chunks[3]["choices"][0]["delta"], Value::object());
  EXPECT_EQ(chunks[3]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chunks[3]["usage"], nullptr);
  EXPECT_EQ(chunks[4]["choices"], Value::array());
  EXPECT_EQ(chunks[4]["usage"]["total_tokens"], 7);
}

TEST(Answer, OfCompletionsNumbersChoicesThroughAllPromptsAndCountsEachPromptOnce) {
  const GenerationCall call = CompletionCall({{"prompt", {"Hi", "Hello"}}, {"n", 2}});
  ASSERT_EQ(call.requests.size(), 2U);
  EXPECT_EQ(call.requests[1].first_choice, 2);
  Answer answer(Api().model(), call, "cmpl-1", kCreated);
  for (const int32_t choice : {3, 0, 2, 1}) {
    EXPECT_FALSE(answer.finished());
    OutputEvent event = Event(choice, "", "text " + std::to_string(choice));
    event.finish = Finish{.stop_string = "END"};
    if (choice == 2) event.finish = Finish{.stop_token = 7};
    event.usage = {.prompt_tokens = choice < 2 ? 10 : 20, .completion_tokens = 1};
    answer.Add({event});
  }
  const Value body = Value::parse(answer.Body());
  EXPECT_EQ(body["object"], "text_completion");
  ASSERT_EQ(body["choices"].size(), 4U);
  EXPECT_EQ(body["choices"][3], Value::parse(R"({"index": 3, "text": "text 3", "logprobs": null,
      "finish_reason": "stop", "stop_reason": "END"})"));
  EXPECT_EQ(body["choices"][2]["stop_reason"], 7);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 30);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
}

// The prompt's log-probabilities come in pieces, before the first token.
std::vector<OutputEvent> EchoEvents(const std::vector<int32_t>& prompt) {
  OutputEvent first{.choice = 0};
  first.prompt_logprobs = {std::nullopt};
  OutputEvent second{.choice = 0};
  for (size_t i = 1; i < prompt.size(); ++i) {
    second.prompt_logprobs.push_back(LogprobEntry{
        .chosen = {prompt[i], -1.5}, .top = {{46, -0.5}}, .text_offset = static_cast<int64_t>(i)});
  }
  OutputEvent third = Event(0, "", "!");
  third.content_logprobs = {{.chosen = {7, -std::numeric_limits<double>::infinity()},
                             .top = {{7, -0.25}, {200, -3}},
                             .text_offset = 5}};
  OutputEvent last = Event(1, "", "?");
  last.finish = Finish{.reason = FinishReason::kLength};
  return {first, second, third, End(0, {}), last};
}

TEST(Answer, EchoesThePromptWithItsLogprobsInEveryChoice) {
  const GenerationCall call =
      CompletionCall({{"prompt", {46, 496}}, {"n", 2}, {"echo", true}, {"logprobs", 2}});
  const auto& prompt = call.requests[0].prompt;
  ASSERT_EQ(prompt.size(), 2U);
  Answer answer(Api().model(), call, "cmpl-1", kCreated);
  answer.Add(EchoEvents(prompt));
  const Value body = Value::parse(answer.Body());
  EXPECT_EQ(body["choices"][0]["text"], "Hell!");
  EXPECT_EQ(body["choices"][1]["text"], "Hell?");
  const Value& logprobs = body["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Value({"H", "ell", "!"}));
  EXPECT_EQ(logprobs["token_logprobs"], Value({nullptr, -1.5, -9999.0}));
  EXPECT_EQ(logprobs["text_offset"], Value({0, 1, 5}));
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1], Value({{"H", -0.5}, {"ell", -1.5}}));
  EXPECT_EQ(logprobs["top_logprobs"][2]["!"], -0.25);
  EXPECT_EQ(body["choices"][1]["logprobs"]["tokens"], Value({"H", "ell"}));
}

TEST(Answer, StreamsAnEchoWithTheFirstToken) {
  const GenerationCall call = CompletionCall(
      {{"prompt", {46, 496}}, {"n", 2}, {"echo", true}, {"logprobs", 2}, {"stream", true}});
  Answer answer(Api().model(), call, "cmpl-1", kCreated);
  auto events = EchoEvents(call.requests[0].prompt);
  EXPECT_EQ(answer.Stream({events[0]}), "");
  EXPECT_EQ(answer.Stream({events[1]}), "");
  const auto chunks = Chunks(answer.Stream({events.begin() + 2, events.end()}));
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "Hell!");
  EXPECT_EQ(chunks[0]["choices"][0]["logprobs"]["tokens"], Value({"H", "ell", "!"}));
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "");
  EXPECT_EQ(chunks[2]["choices"][0]["text"], "Hell?");
  EXPECT_FALSE(chunks[0].contains("usage"));
}

TEST(Answer, WritesTokensThatAreNoUtf8AsBytes) {
  const int32_t id = TestTokenizer().Encode("\xE2", ControlTokens::kAsText).value().at(0);
  OutputEvent event = Event(0, "", "x");
  event.content_logprobs = {{.chosen = {id, -1}, .top = {{id, -1}}}};
  event.finish = Finish{};
  const GenerationCall text = CompletionCall({{"logprobs", 1}});
  Answer completion(Api().model(), text, "cmpl-1", kCreated);
  completion.Add({event});
  const Value body = Value::parse(completion.Body());
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"], Value({R"(bytes:\xe2)"}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["top_logprobs"], Value({{{R"(bytes:\xe2)", -1.0}}}));

  const GenerationCall chat = ChatCall({{"logprobs", true}, {"top_logprobs", 1}});
  Answer answer(Api().model(), chat, "chatcmpl-1", kCreated);
  answer.Add({event});
  EXPECT_EQ(Value::parse(answer.Body())["choices"][0]["logprobs"], Value::parse(R"({
      "content": [{"token": "\ufffd", "logprob": -1.0, "bytes": [226],
                   "top_logprobs": [{"token": "\ufffd", "logprob": -1.0, "bytes": [226]}]}],
      "reasoning_content": [], "refusal": null})"));
}

TEST(Answer, ShowsReasoningUnderTheNamesThatAreWanted) {
  for (const auto& [field, shown, hidden] :
       {std::tuple(ReasoningField::kReasoning, "reasoning", "reasoning_content"),
        std::tuple(ReasoningField::kReasoningContent, "reasoning_content", "reasoning")}) {
    const OpenAiApi api(TestModel(), {.reasoning_field = field});
    const auto call = api.ParseChat(R"({"messages": [{"role": "user", "content": "Hi"}]})").value();
    Answer answer(api.model(), call, "chatcmpl-1", kCreated);
    answer.Add({Event(0, "Hm", ""), End(0, {})});
    const Value message = Value::parse(answer.Body())["choices"][0]["message"];
    EXPECT_EQ(message[shown], "Hm");
    EXPECT_FALSE(message.contains(hidden));
  }
}

TEST(Answer, HidesReasoningThatIsNotWanted) {
  const GenerationCall whole = ChatCall({{"include_reasoning", false}});
  Answer answer(Api().model(), whole, "chatcmpl-1", kCreated);
  answer.Add({Event(0, "Hm", "Yes"), End(0, {})});
  EXPECT_EQ(Value::parse(answer.Body())["choices"][0]["message"]["reasoning"], nullptr);
  const GenerationCall call = ChatCall({{"include_reasoning", false}, {"stream", true}});
  Answer stream(Api().model(), call, "chatcmpl-1", kCreated);
  const std::string chunks = stream.Stream({Event(0, "Hm", "Yes"), End(0, {})});
  EXPECT_EQ(chunks.find("Hm"), std::string::npos);
}

TEST(Answer, SaysTheUsageInEveryChunkIfAsked) {
  const GenerationCall call =
      ChatCall({{"stream", true},
                {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  Answer answer(Api().model(), call, "chatcmpl-1", kCreated);
  OutputEvent event = Event(0, "", "a");
  event.usage = {.prompt_tokens = 3, .completion_tokens = 1};
  std::string stream = answer.Stream({event});
  stream += answer.Stream({End(0, {}, {.prompt_tokens = 3, .completion_tokens = 2})});
  const auto chunks = Chunks(stream);
  ASSERT_EQ(chunks.size(), 4U);
  EXPECT_EQ(chunks[1]["usage"]["total_tokens"], 4);
  EXPECT_EQ(chunks[3]["usage"]["total_tokens"], 5);
}

TEST(Answer, EndsAStreamWithTheErrorOfAChoice) {
  const GenerationCall call = ChatCall({{"stream", true}, {"n", 2}});
  Answer answer(Api().model(), call, "chatcmpl-1", kCreated);
  std::string stream = answer.Stream({Event(0, "", "a")});
  stream += answer.Stream({End(1, {.reason = FinishReason::kError,
                                   .error_code = "nonfinite_logits",
                                   .error_message = "a logit is not finite"}),
                           Event(0, "", "b")});
  EXPECT_TRUE(answer.finished());
  ASSERT_TRUE(answer.error());
  EXPECT_EQ(answer.error()->status, 500);
  const auto chunks = Chunks(stream);
  EXPECT_EQ(chunks.back(), Value::parse(R"({"error": {"message": "a logit is not finite",
      "type": "server_error", "param": null, "code": "nonfinite_logits"}})"));
  EXPECT_EQ(answer.Stream({Event(0, "", "c")}), "");
  EXPECT_EQ(answer.StreamError({.status = 503}), "");
}

TEST(Answer, TellsEveryFailureWithItsStatusAndCode) {
  const std::pair<Finish, std::pair<int, std::string>> kCases[] = {
      {{.reason = FinishReason::kAbort, .cancelled = CancelCause::kQueueTimeout},
       {503, "queue_timeout"}},
      {{.reason = FinishReason::kAbort, .cancelled = CancelCause::kRequestTimeout},
       {504, "request_timeout"}},
      {{.reason = FinishReason::kAbort, .cancelled = CancelCause::kShutdown}, {503, "draining"}},
      {{.reason = FinishReason::kError, .error_code = "engine_dead"}, {503, "engine_dead"}},
      {{.reason = FinishReason::kError, .error_code = "nonfinite_logits"},
       {500, "nonfinite_logits"}},
  };
  for (const auto& [finish, expected] : kCases) {
    const GenerationCall call = CompletionCall();
    Answer answer(Api().model(), call, "cmpl-1", kCreated);
    answer.Add({End(0, finish)});
    ASSERT_TRUE(answer.error());
    EXPECT_EQ(std::pair(answer.error()->status, answer.error()->code), expected);
    EXPECT_EQ(answer.error()->type(), "server_error");
  }
}

TEST(Answer, GivesTheTokenIdsOfAllEventsExactlyOnce) {
  const GenerationCall call = ChatCall({{"stream", true}, {"return_token_ids", true}});
  Answer answer(Api().model(), call, "chatcmpl-1", kCreated);
  const std::vector<int32_t> held = {12};
  std::string stream = answer.Stream({Event(0, "r", "c", {10, 11}), Event(0, "", "", held)});
  stream += answer.Stream({End(0, {})});
  std::vector<int32_t> ids;
  size_t prompts = 0;
  for (const Value& chunk : Chunks(stream)) {
    const Value& choice = chunk["choices"][0];
    prompts += choice.contains("prompt_token_ids") ? 1 : 0;
    if (!choice.contains("token_ids")) continue;
    for (const int32_t id : choice["token_ids"]) ids.push_back(id);
  }
  EXPECT_EQ(prompts, 1U);
  EXPECT_EQ(ids, (std::vector<int32_t>{10, 11, 12, 1}));
}

// All that the events of one choice say, and the same from the chunks of a stream.
struct Told {
  std::string role, reasoning, content;
  Value logprobs = Value::array();
  Value finish;
  bool operator==(const Told&) const = default;
};

void Join(Value& to, const Value& from) {
  for (const Value& each : from) to.push_back(each);
}

Told FromBody(const Value& choice) {
  const Value& message = choice["message"];
  Told told{message["role"], message["reasoning"], message["content"]};
  Join(told.logprobs, choice["logprobs"]["reasoning_content"]);
  Join(told.logprobs, choice["logprobs"]["content"]);
  told.finish = {choice["finish_reason"], choice["stop_reason"]};
  return told;
}

void AddDelta(Told& told, const Value& choice) {
  EXPECT_TRUE(told.finish.is_null()) << "a chunk after the end";
  const Value& delta = choice["delta"];
  if (delta.contains("role")) {
    EXPECT_EQ(told, Told()) << "the role comes first";
    told.role = delta["role"];
  }
  if (delta.contains("reasoning")) {
    EXPECT_EQ(told.content, "") << "reasoning comes before content";
    told.reasoning += delta["reasoning"];
  }
  if (delta.contains("content")) told.content += delta["content"];
  if (choice["logprobs"].is_object()) {
    Join(told.logprobs, choice["logprobs"]["reasoning_content"]);
    Join(told.logprobs, choice["logprobs"]["content"]);
  }
  if (!choice["finish_reason"].is_null()) {
    told.finish = {choice["finish_reason"], choice["stop_reason"]};
  }
}

TEST(Answer, StreamsTheWholeHoweverTheEventsAreGrouped) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return random() % n; };
  constexpr std::string_view kPieces[] = {"",  "a", "\n", "\"\\", "\u4f60", "\xF0\x9F\x99\x82",
                                          "</"};
  for (int round = 0; round < 200; ++round) {
    std::vector<OutputEvent> events;
    for (int32_t choice = 0; choice < 3; ++choice) {
      for (const bool reasoning : {true, false}) {
        for (uint32_t i = below(6); i > 0; --i) {
          OutputEvent event = Event(choice, "", "");
          (reasoning ? event.reasoning : event.content) = kPieces[below(7)];
          LogprobEntry entry{.chosen = {static_cast<int32_t>(below(500)), -0.5}};
          (reasoning ? event.reasoning_logprobs : event.content_logprobs).push_back(entry);
          events.push_back(std::move(event));
        }
      }
      events.push_back(End(choice, {.reason = FinishReason::kLength}));
    }
    Value options = {{"n", 3}, {"logprobs", true}};
    Answer whole(Api().model(), ChatCall(options), "chatcmpl-1", kCreated);
    whole.Add(events);
    const Value body = Value::parse(whole.Body());

    options["stream"] = true;
    Answer answer(Api().model(), ChatCall(options), "chatcmpl-1", kCreated);
    std::string stream;
    for (size_t i = 0; i < events.size();) {
      // What one Take of a mailbox gives: events of a choice in a row joined.
      std::vector<OutputEvent> taken = {events[i++]};
      for (uint32_t more = below(5); more > 0 && i < events.size(); --more, ++i) {
        if (taken.back().choice == events[i].choice) {
          Append(taken.back(), events[i]);
        } else {
          taken.push_back(events[i]);
        }
      }
      stream += answer.Stream(std::move(taken));
    }
    std::vector<Told> told(3);
    for (const Value& chunk : Chunks(stream)) {
      for (const Value& choice : chunk["choices"]) AddDelta(told[choice["index"]], choice);
    }
    for (size_t choice = 0; choice < 3; ++choice) {
      ASSERT_EQ(told[choice], FromBody(body["choices"][choice])) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace halfbyte
