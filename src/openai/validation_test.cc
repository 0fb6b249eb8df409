// Every limit of the bodies and the value just beyond it, with the path of the field at fault.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "openai/api.h"
#include "openai/dialect_fields.h"
#include "openai/field_table.h"
#include "openai/openai_test_model.h"

namespace halfbyte {
namespace {

using Value = nlohmann::json;

enum class Route { kCompletions, kChat };

// A valid body with the fields of `more` put in or, if null, taken out.
std::string Body(Route route, const Value& more) {
  Value body = route == Route::kChat ? Value{{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}
                                     : Value{{"prompt", "Hi"}};
  body.update(more);
  return body.dump();
}

// "" if the body is taken, else "code param".
std::string Verdict(Route route, const std::string& body) {
  const auto call =
      route == Route::kChat ? TestApi().ParseChat(body) : TestApi().ParseCompletions(body);
  if (call) return "";
  EXPECT_EQ(call.error().status, call.error().code == "model_not_found" ? 404 : 400);
  EXPECT_GT(call.error().message.size(), 10U);
  if (!call.error().param.empty() && call.error().code != "missing_field") {
    // The sentence is about the field.
    EXPECT_NE(call.error().message.find(call.error().param.substr(0, 4)), std::string::npos)
        << call.error().message;
  }
  return call.error().code + " " + call.error().param;
}

struct Limits {
  std::string_view field;
  std::vector<std::string> taken;    // as JSON
  std::vector<std::string> refused;  // with the field's name as path
};

const std::vector<Limits> kBoth = {
    {"temperature", {"0", "2", "2.0", "null"}, {"-0.001", "2.001", "\"1\"", "true", "[]", "1e300"}},
    {"top_p", {"1", "0.0001"}, {"0", "1.0001", "-1", "\"\""}},
    {"min_p", {"0", "1"}, {"-0.01", "1.01", "false"}},
    {"top_k",
     {"-1", "0", "1", "5.0", "9223372036854775807"},
     {"-2", "1.5", "9223372036854775808", "1e19", "true"}},
    {"presence_penalty", {"-2", "2"}, {"-2.01", "2.01"}},
    {"frequency_penalty", {"-2", "2"}, {"-2.01", "2.01"}},
    {"repetition_penalty", {"0.01", "10"}, {"0", "10.01", "-1"}},
    {"n", {"1", "16", "16.0"}, {"0", "17", "-1", "1.5", "\"2\"", "1e400000000000"}},
    {"seed",
     {"-9223372036854775808", "9223372036854775807", "0"},
     {"9223372036854775808", "-9223372036854775809", "0.5", "\"1\""}},
    {"stop", {"\"x\"", "[]", "[\"a\",\"b\"]", "null"}, {"\"\"", "5", "{}", "true"}},
    {"stop_token_ids", {"[]", "[0,511]"}, {"5"}},
    {"cache_salt", {"\"\"", "\"salt\""}, {"5"}},
    {"stream", {"true", "false", "null"}, {"1", "\"true\"", "0"}},
    {"ignore_eos", {"true"}, {"1"}},
    {"include_stop_str_in_output", {"true"}, {"\"no\""}},
    {"return_token_ids", {"true"}, {"1"}},
    {"add_special_tokens", {"false"}, {"0"}},
    {"max_tokens", {"1", "900"}, {"-1", "1.5", "\"5\"", "true"}},
    {"min_tokens", {"0", "3", "16"}, {"-1", "1.5"}},
};

class Refuses : public testing::TestWithParam<Route> {};

TEST_P(Refuses, TheValueJustBeyondEachLimit) {
  for (const Limits& limits : kBoth) {
    for (const std::string& value : limits.taken) {
      std::string body = Body(GetParam(), {{"max_tokens", 20}});
      if (limits.field == "max_tokens") body = Body(GetParam(), Value::object());
      body.insert(1, fmt::format("\"{}\":{},", limits.field, value));
      EXPECT_EQ(Verdict(GetParam(), body), "") << body;
    }
    for (const std::string& value : limits.refused) {
      std::string body = Body(GetParam(), Value::object());
      body.insert(1, fmt::format("\"{}\":{},", limits.field, value));
      EXPECT_EQ(Verdict(GetParam(), body), fmt::format("invalid_value {}", limits.field)) << body;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, Refuses, testing::Values(Route::kCompletions, Route::kChat));

Value Repeat(const Value& value, size_t count) { return std::vector<Value>(count, value); }

Value Message(const Value& more) {
  Value message = {{"role", "user"}, {"content", "Hi"}};
  message.update(more);
  return {{"messages", {message}}};
}

Value Biases(int count) {
  Value map = Value::object();
  for (int i = 0; i < count; ++i) map[std::to_string(i)] = 1;
  return {{"logit_bias", map}};
}

TEST(Completions, AreCheckedFieldByField) {
  constexpr Route kRoute = Route::kCompletions;
  const std::vector<std::pair<Value, std::string>> kCases = {
      {{{"prompt", nullptr}}, "missing_field prompt"},
      {{{"prompt", ""}}, "invalid_value prompt"},
      {{{"prompt", Value::array()}}, "invalid_value prompt"},
      {{{"prompt", 5}}, "invalid_value prompt"},
      {{{"prompt", Value::object()}}, "invalid_value prompt"},
      {{{"prompt", Repeat("a", 64)}}, ""},
      {{{"prompt", Repeat("a", 65)}}, "invalid_value prompt"},
      {{{"prompt", {"a", 5}}}, "invalid_value prompt[1]"},
      {{{"prompt", {"a", ""}}}, "invalid_value prompt[1]"},
      {{{"prompt", {5, 7}}}, ""},
      {{{"prompt", {5, "a"}}}, "invalid_value prompt[1]"},
      {{{"prompt", {5, -1}}}, "invalid_value prompt[1]"},
      {{{"prompt", {5, 511}}}, ""},
      {{{"prompt", {5, 1'000'000}}}, "invalid_value prompt[1]"},
      {{{"prompt", {5, 1e18}}}, "invalid_value prompt[1]"},
      {{{"prompt", {{1, 2}, {3}}}}, ""},
      {{{"prompt", {{1, 2}, Value::array()}}}, "invalid_value prompt[1]"},
      {{{"prompt", {{1, 2}, {3, "a"}}}}, "invalid_value prompt[1][1]"},
      {{{"prompt", {{1, 2}, {3, 99999}}}}, "invalid_value prompt[1][1]"},
      {{{"prompt", Repeat({1}, 65)}}, "invalid_value prompt"},
      {{{"prompt", Repeat(5, 999)}, {"max_tokens", 1}}, ""},
      {{{"prompt", Repeat(5, 1000)}}, "context_length_exceeded prompt"},
      {{{"prompt", {Repeat(5, 3), Repeat(5, 1000)}}}, "context_length_exceeded prompt[1]"},
      {{{"prompt", Repeat(5, 900)}, {"max_tokens", 100}}, ""},
      {{{"prompt", Repeat(5, 900)}, {"max_tokens", 101}}, "context_length_exceeded max_tokens"},
      {{{"prompt", Repeat(5, 900)}, {"max_completion_tokens", 101}},
       "context_length_exceeded max_completion_tokens"},
      {{{"max_tokens", int64_t{1} << 62}}, "context_length_exceeded max_tokens"},
      {{{"max_tokens", 0}}, "invalid_value max_tokens"},
      {{{"max_tokens", 0}, {"echo", true}}, ""},
      {{{"prompt", Repeat(5, 1000)}, {"max_tokens", 0}, {"echo", true}}, ""},
      {{{"prompt", Repeat(5, 1001)}, {"max_tokens", 0}, {"echo", true}},
       "context_length_exceeded prompt"},
      {{{"max_tokens", 5}, {"max_completion_tokens", 5}}, ""},
      {{{"max_tokens", 5}, {"max_completion_tokens", 6}}, "invalid_value max_completion_tokens"},
      {{{"max_tokens", 5}, {"min_tokens", 6}}, "invalid_value min_tokens"},
      {{{"min_tokens", 17}}, "invalid_value min_tokens"},
      {{{"logprobs", 0}}, ""},
      {{{"logprobs", 20}}, ""},
      {{{"logprobs", 21}}, "invalid_value logprobs"},
      {{{"logprobs", true}}, "invalid_value logprobs"},
      {{{"echo", 1}}, "invalid_value echo"},
      {{{"skip_special_tokens", false}}, ""},
      {{{"stop", std::string(1024, 'x')}}, ""},
      {{{"stop", std::string(1025, 'x')}}, "invalid_value stop"},
      {{{"stop", Repeat("x", 16)}}, ""},
      {{{"stop", Repeat("x", 17)}}, "invalid_value stop"},
      {{{"stop", {"x", ""}}}, "invalid_value stop[1]"},
      {{{"stop", {"x", nullptr}}}, "invalid_value stop[1]"},
      {{{"stop_token_ids", Repeat(3, 64)}}, ""},
      {{{"stop_token_ids", Repeat(3, 65)}}, "invalid_value stop_token_ids"},
      {{{"stop_token_ids", {3, 99999}}}, "invalid_value stop_token_ids[1]"},
      {{{"cache_salt", std::string(256, 'x')}}, ""},
      {{{"cache_salt", std::string(257, 'x')}}, "invalid_value cache_salt"},
      {{{"logit_bias", {{"5", 100}, {"7", -100}}}}, ""},
      {{{"logit_bias", {{"5", 100.5}}}}, "invalid_value logit_bias.5"},
      {{{"logit_bias", {{"5", "1"}}}}, "invalid_value logit_bias.5"},
      {{{"logit_bias", {{"05", 1}}}}, "invalid_value logit_bias.05"},
      {{{"logit_bias", {{"-5", 1}}}}, "invalid_value logit_bias.-5"},
      {{{"logit_bias", {{"x", 1}}}}, "invalid_value logit_bias.x"},
      {{{"logit_bias", {{"99999", 1}}}}, "invalid_value logit_bias.99999"},
      {{{"logit_bias", Value::array()}}, "invalid_value logit_bias"},
      {Biases(500), ""},
      {Biases(1025), "invalid_value logit_bias"},
      {{{"stream_options", {{"include_usage", true}}}}, "invalid_value stream_options"},
      {{{"stream_options", {{"include_usage", true}}}, {"stream", false}},
       "invalid_value stream_options"},
      {{{"stream_options", {{"include_usage", true}, {"include_obfuscation", false}}},
        {"stream", true}},
       ""},
      {{{"stream_options", {{"include_usage", 1}}}, {"stream", true}},
       "invalid_value stream_options.include_usage"},
      {{{"model", "alias"}}, ""},
      {{{"model", "other"}}, "model_not_found model"},
      {{{"model", 5}}, "invalid_value model"},
      {{{"best_of", 1}}, ""},
      {{{"best_of", 3}, {"n", 3}}, ""},
      {{{"best_of", 2}}, "unsupported_parameter best_of"},
      {{{"suffix", ""}}, ""},
      {{{"suffix", "x"}}, "unsupported_parameter suffix"},
      {{{"user", "me"}, {"metadata", {{"a", "b"}}}, {"store", true}}, ""},
      {{{"response_format", {{"type", "text"}}}}, ""},
      {{{"response_format", {{"type", "json_object"}}}}, "unsupported_parameter response_format"},
  };
  for (const auto& [more, verdict] : kCases) {
    const std::string body = Body(kRoute, more);
    EXPECT_EQ(Verdict(kRoute, body), verdict) << body.substr(0, 300);
  }
}

TEST(Chat, IsCheckedFieldByField) {
  constexpr Route kRoute = Route::kChat;
  const Value user = {{"role", "user"}, {"content", "Hi"}};
  const Value assistant = {{"role", "assistant"}, {"content", "So"}};
  const auto part = [](const char* type) { return Value{{"type", type}, {"text", "x"}}; };
  const std::vector<std::pair<Value, std::string>> kCases = {
      {{{"messages", nullptr}}, "missing_field messages"},
      {{{"messages", Value::array()}}, "invalid_value messages"},
      {{{"messages", "Hi"}}, "invalid_value messages"},
      {{{"messages", {user, "Hi"}}}, "invalid_value messages[1]"},
      {{{"messages", {user, nullptr}}}, "invalid_value messages[1]"},
      {Message({{"role", nullptr}}), "missing_field messages[0].role"},
      {Message({{"role", "tool"}}), "invalid_value messages[0].role"},
      {Message({{"role", "User"}}), "invalid_value messages[0].role"},
      {Message({{"role", "developer"}}), ""},
      {Message({{"role", "system"}}), ""},
      {Message({{"content", nullptr}}), "missing_field messages[0].content"},
      {Message({{"content", 5}}), "invalid_value messages[0].content"},
      {Message({{"content", Value::array()}}), "invalid_value messages[0].content"},
      {Message({{"content", {part("text"), part("text")}}}), ""},
      {Message({{"content", {part("text"), part("image_url")}}}),
       "invalid_value messages[0].content[1].type"},
      {Message({{"content", {{{"type", "text"}}}}}), "missing_field messages[0].content[0].text"},
      {Message({{"content", {{{"type", "text"}, {"text", 5}}}}}),
       "invalid_value messages[0].content[0].text"},
      {Message({{"name", "Bob"}}), ""},
      {Message({{"name", 5}}), "invalid_value messages[0].name"},
      {Message({{"prefix", true}}), "unsupported_parameter messages[0].prefix"},
      {Message({{"refusal", nullptr}, {"annotations", Value::array()}}), ""},
      {Message({{"reasoning", "Hm"}}), "invalid_value messages[0].reasoning"},
      {{{"messages", {user, assistant}}}, "invalid_value messages[1].role"},
      {{{"messages", {user, assistant}}, {"continue_final_message", true}}, ""},
      {{{"messages", {user}}, {"continue_final_message", true}},
       "invalid_value continue_final_message"},
      {{{"messages", {user, {{"role", "assistant"}, {"content", nullptr}}, user}}}, ""},
      {{{"messages",
         {user, {{"role", "assistant"}, {"reasoning", "a"}, {"reasoning_content", "a"}}, user}}},
       ""},
      {{{"messages",
         {user, {{"role", "assistant"}, {"reasoning", "a"}, {"reasoning_content", "b"}}, user}}},
       "invalid_value messages[1].reasoning"},
      {{{"max_tokens", 0}}, "invalid_value max_tokens"},
      {{{"max_completion_tokens", 0}}, "invalid_value max_completion_tokens"},
      {{{"logprobs", true}, {"top_logprobs", 20}}, ""},
      {{{"logprobs", true}, {"top_logprobs", 21}}, "invalid_value top_logprobs"},
      {{{"logprobs", false}, {"top_logprobs", 2}}, "invalid_value top_logprobs"},
      {{{"top_logprobs", 0}}, ""},
      {{{"logprobs", 1}}, "invalid_value logprobs"},
      {{{"tools", Value::array()}, {"tool_choice", "none"}}, ""},
      {{{"tools", {{{"type", "function"}}}}}, "unsupported_parameter tools"},
      {{{"tool_choice", "required"}}, "unsupported_parameter tool_choice"},
      {{{"modalities", {"text"}}}, ""},
      {{{"modalities", {"audio"}}}, "unsupported_parameter modalities"},
      {{{"audio", {{"voice", "x"}}}}, "unsupported_parameter audio"},
      {{{"function_call", nullptr}, {"prediction", nullptr}}, ""},
      {{{"thinking_token_budget", 100}}, "unsupported_parameter thinking_token_budget"},
      {{{"skip_special_tokens", true}}, ""},
      {{{"skip_special_tokens", false}}, "unsupported_parameter skip_special_tokens"},
      // Thinking in its spellings.
      {{{"thinking", {{"type", "enabled"}}}, {"think", true}, {"reasoning_effort", "high"}}, ""},
      {{{"thinking", {{"type", "adaptive"}}}, {"enable_thinking", true}}, ""},
      {{{"thinking", {{"type", "on"}}}}, "invalid_value thinking.type"},
      {{{"thinking", {{"kind", "enabled"}}}}, "unknown_field thinking.kind"},
      {{{"thinking", Value::object()}}, "missing_field thinking.type"},
      {{{"thinking", {{"type", "enabled"}, {"budget_tokens", 5}}}},
       "unsupported_parameter thinking.budget_tokens"},
      {{{"thinking", "on"}}, "invalid_value thinking"},
      {{{"thinking", false}, {"think", true}}, "invalid_value think"},
      {{{"think", false}, {"enable_thinking", true}}, "invalid_value enable_thinking"},
      {{{"think", true}, {"reasoning_effort", "none"}}, "invalid_value reasoning_effort"},
      {{{"think", false}, {"reasoning_effort", "low"}}, "invalid_value reasoning_effort"},
      {{{"think", false}, {"reasoning_effort", "none"}}, ""},
      {{{"reasoning_effort", "minimal"}, {"output_config", {{"effort", "low"}}}}, ""},
      {{{"reasoning_effort", "low"}, {"output_config", {{"effort", "high"}}}},
       "invalid_value output_config.effort"},
      {{{"reasoning", {{"effort", "xhigh"}, {"enabled", true}}}}, ""},
      {{{"reasoning", {{"enabled", false}}}, {"think", true}}, "invalid_value reasoning.enabled"},
      {{{"reasoning", {{"max_tokens", 5}}}}, "unknown_field reasoning.max_tokens"},
      {{{"reasoning_effort", "huge"}}, "invalid_value reasoning_effort"},
      {{{"chat_template_kwargs", {{"thinking", true}, {"enable_thinking", false}}}},
       "invalid_value chat_template_kwargs.enable_thinking"},
      {{{"chat_template_kwargs", {{"tools", 1}}}}, "unknown_field chat_template_kwargs.tools"},
      {{{"reasoning_effort", "max"}}, "prompt_data_missing reasoning_effort"},
  };
  for (const auto& [more, verdict] : kCases) {
    const std::string body = Body(kRoute, more);
    EXPECT_EQ(Verdict(kRoute, body), verdict) << body.substr(0, 300);
  }
}

TEST(Bodies, MustBeJsonObjects) {
  std::string deep = R"({"messages":)" + std::string(70, '[') + std::string(70, ']') + "}";
  const std::pair<std::string, std::string> kCases[] = {
      {"", "invalid_json "},
      {"{", "invalid_json "},
      {"[]", "invalid_value "},
      {"5", "invalid_value "},
      {"{} x", "invalid_json "},
      {"{\"a\":1,}", "invalid_json "},
      {"{\"prompt\":\"\xff\"}", "invalid_json "},
      {"{\"prompt\":\"\\ud800\"}", "invalid_json "},
      {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "invalid_json "},
      {"{\"x\":{\"n\":1,\"n\":2}}", "invalid_json "},
      {deep, "invalid_json "},
      {"{\"prompt\":NaN}", "invalid_json "},
      {"{\"a\":[1,{\"b\":1e999}]}", "invalid_value a[1].b"},
      {"{\"temperature\":-1e999}", "invalid_value temperature"},
  };
  for (const auto& [body, verdict] : kCases) {
    for (const Route route : {Route::kCompletions, Route::kChat}) {
      const auto call =
          route == Route::kChat ? TestApi().ParseChat(body) : TestApi().ParseCompletions(body);
      ASSERT_FALSE(call) << body;
      EXPECT_EQ(call.error().code + " " + call.error().param, verdict) << body;
      EXPECT_TRUE(Value::accept(call.error().Json())) << body;
    }
  }
}

TEST(Bodies, ThatAreHugeAreRefusedSoon) {
  std::string many = "{";
  for (int i = 0; i < 300'000; ++i) many += fmt::format("\"{}\":0,", i);
  many += "\"prompt\":\"a\"}";
  EXPECT_EQ(Verdict(Route::kCompletions, many), "invalid_json ");
  std::string zeros = "{\"prompt\":[0";
  for (int i = 0; i < (5 << 20); ++i) zeros += ",0";
  EXPECT_EQ(Verdict(Route::kCompletions, zeros + "]}"), "invalid_json ");
}

TEST(Errors, CutLongNames) {
  const std::string name(100'000, 'x');
  const auto call =
      TestApi().ParseCompletions(Body(Route::kCompletions, {{"logit_bias", {{name, 1}}}}));
  ASSERT_FALSE(call);
  EXPECT_LT(call.error().Json().size(), 1000U);
}

TEST(UnknownNames, AreDroppedAndReported) {
  const auto call = TestApi().ParseChat(
      R"({"messages":[{"role":"user","content":"Hi","mood":1}],"fancy\r\nX: y":2,"zz":null})");
  ASSERT_TRUE(call);
  EXPECT_EQ(call->ignored, (std::vector<std::string>{"fancy??X??y", "messages[0].mood", "zz"}));
}

TEST(UnknownNames, AreErrorsIfTheServerSaysSo) {
  const OpenAiApi strict(TestModel(), {.reject_unknown_fields = true});
  const auto call = strict.ParseCompletions(R"({"prompt":"a","fancy":2})");
  ASSERT_FALSE(call);
  EXPECT_EQ(call.error().code, "unknown_field");
  EXPECT_EQ(call.error().param, "fancy");
}

// A value that no field takes for nothing.
const Value kOdd = {{"odd", "value"}};

std::vector<std::string> NamesIgnored(Route route, const std::string& body) {
  const auto call =
      route == Route::kChat ? TestApi().ParseChat(body) : TestApi().ParseCompletions(body);
  return call ? call->ignored : std::vector<std::string>{"an error"};
}

bool IsOwn(const Rule& rule, std::string_view name) {
  const auto field = std::ranges::find(rule.fields, name, &Field::name);
  return field != rule.fields.end() && field->rule.kind != Rule::Kind::kUnsupported;
}

class Dialects : public testing::TestWithParam<Route> {};

TEST_P(Dialects, EachFieldGetsWhatTheTableSays) {
  const Route route = GetParam();
  const FieldTable table({});
  const Rule& rule = route == Route::kChat ? table.chat() : table.completions();
  std::set<std::string_view> names;
  for (const DialectField& row : DialectFields()) {
    const std::string name(row.name);
    EXPECT_TRUE(names.insert(row.name).second) << name << " is there twice";
    const std::string odd = Body(route, {{name, kOdd}});
    const bool honoured = row.gets == FieldGets::kHonoured && IsOwn(rule, row.name);
    if (row.gets == FieldGets::kHarmless) {
      EXPECT_EQ(NamesIgnored(route, odd), std::vector<std::string>{name});
    } else if (row.gets == FieldGets::kAccepted) {
      EXPECT_EQ(NamesIgnored(route, odd), std::vector<std::string>{}) << name;
    } else if (row.gets == FieldGets::kAlias || honoured) {
      EXPECT_NE(Verdict(route, odd), "") << name;
      EXPECT_EQ(Verdict(route, odd).find("unsupported_parameter"), std::string::npos) << name;
    } else {
      EXPECT_EQ(Verdict(route, odd), "unsupported_parameter " + name);
      if (row.neutral.empty()) continue;
      for (const Value& nothing : Value::parse(row.neutral)) {
        EXPECT_EQ(Verdict(route, Body(route, {{name, nothing}})), "") << name << nothing;
      }
    }
    EXPECT_EQ(Verdict(route, Body(route, {{name, nullptr}})) == "",
              name != "prompt" && name != "messages" ? true : !honoured)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Routes, Dialects, testing::Values(Route::kCompletions, Route::kChat));

TEST(Dialects, OtherNamesMeanTheSame) {
  const auto call = TestApi()
                        .ParseCompletions(R"({"prompt": "Hi", "n_predict": 9, "min_new_tokens": 2,
                            "random_seed": 5, "stop_sequences": ["a", "b"], "n_cmpl": 3})")
                        .value();
  const Request& request = call.requests[0];
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_EQ(request.sampling.seed, 5U);
  EXPECT_FALSE(call.seed_drawn);
  EXPECT_EQ(request.stop.strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.n, 3);
  EXPECT_TRUE(call.ignored.empty());
  const auto verdict = [](const Value& more) {
    return Verdict(Route::kCompletions, Body(Route::kCompletions, more));
  };
  EXPECT_EQ(verdict({{"max_new_tokens", 5}, {"n_predict", 5}, {"max_tokens", 5}}), "");
  EXPECT_EQ(verdict({{"max_output_tokens", 5}, {"max_tokens", 6}}),
            "invalid_value max_output_tokens");
  EXPECT_EQ(verdict({{"n_predict", -1}}), "invalid_value n_predict");
}

TEST(Dialects, AreShownInTheDocumentation) {
  const std::string page =
      *ReadTextFile(std::filesystem::path(HALFBYTE_SOURCE_DIR) / "docs/fields.md");
  const auto section = [&](std::string_view title) {
    const size_t begin = page.find(title);
    EXPECT_NE(begin, std::string::npos) << title;
    return page.substr(begin, page.find("\n## ", begin) - begin);
  };
  const std::map<FieldGets, std::string> sections = {
      {FieldGets::kAlias, section("## Other names")},
      {FieldGets::kRefused, section("## Refused")},
      {FieldGets::kHonoured, section("## Honoured")},
      {FieldGets::kAccepted, section("## Accepted")},
      {FieldGets::kHarmless, section("## Dropped")},
  };
  for (const DialectField& row : DialectFields()) {
    EXPECT_NE(sections.at(row.gets).find(fmt::format("`{}`", row.name)), std::string::npos)
        << row.name;
  }
}

TEST(Completions, NameTheFirstOfAListThatIsNoPrompt) {
  const auto call = TestApi().ParseCompletions(R"({"prompt": [null, 5, 6]})");
  ASSERT_FALSE(call);
  EXPECT_EQ(call.error().param, "prompt[0]");
  EXPECT_EQ(call.error().message,
            "prompt[0] is null; it must be a string of 1 or more bytes, or an integer from 0 to "
            "2147483647, or a list of 1 or more values, each an integer from 0 to 2147483647");
}

}  // namespace
}  // namespace halfbyte
