#include "openai/field_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "openai/dialect_fields.h"
#include "text/stop_matcher.h"

namespace halfbyte {
namespace {

using Fields = std::vector<Field>;

constexpr int64_t kMostPrompts = 64;
constexpr int64_t kMostStops = StopMatcher::kMostStrings;
constexpr int64_t kMostStopBytes = StopMatcher::kMostBytes;
constexpr int64_t kMostStopIds = 64;
constexpr int64_t kMostBiases = 1024;
constexpr int64_t kMostSaltBytes = 256;
constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();

Rule TokenId() { return Rule::Integer(0, kMostId); }

void Add(Fields& to, Fields more) { std::ranges::move(more, std::back_inserter(to)); }

Field Model() { return {"model", Rule::String(1), "A served name; absent: the first one"}; }

Rule Refused(const DialectField& row) {
  Rule rule = Rule::Unsupported();
  if (!row.neutral.empty())
    rule.neutral = BodyValue::parse(row.neutral).get<std::vector<BodyValue>>();
  return rule;
}

bool IsIn(const Fields& fields, std::string_view name) {
  return std::ranges::find(fields, name, &Field::name) != fields.end();
}

// What the other fields of the dialects get on a route whose own ones are `fields`.
void AddDialects(Fields& fields) {
  for (const DialectField& row : DialectFields()) {
    if (IsIn(fields, row.name)) continue;
    switch (row.gets) {
      case FieldGets::kHonoured:
      case FieldGets::kRefused:
        fields.push_back({row.name, Refused(row)});
        break;
      case FieldGets::kAlias:
        fields.push_back({.name = row.name,
                          .rule = std::ranges::find(fields, row.same_as, &Field::name)->rule,
                          .about = "Another name of a field; equal if both are there",
                          .same_as = row.same_as});
        break;
      case FieldGets::kAccepted:
        fields.push_back({row.name, Rule::NoEffect(), "Accepted; has no effect"});
        break;
      case FieldGets::kHarmless:
        fields.push_back({.name = row.name,
                          .rule = Rule::NoEffect(),
                          .about = "No answer depends on it; named in x-halfbyte-ignored",
                          .dropped = true});
        break;
    }
  }
}

// Those that would change the prompt or more of a chat, for a route that only encodes it.
void AddRefused(Fields& fields) {
  for (const DialectField& row : DialectFields()) {
    if (row.gets == FieldGets::kRefused && !IsIn(fields, row.name)) {
      fields.push_back({row.name, Refused(row)});
    }
  }
}

Fields SamplingFields(const ApiOptions& options) {
  return {
      {"temperature", Rule::Number(0, 2), "0 takes the best token"},
      {"top_p", Rule::NumberAbove(0, 1), "Keep the most probable tokens up to this sum"},
      {"min_p", Rule::Number(0, 1),
       "Keep tokens with at least this share of the best one's probability"},
      {"top_k", Rule::Integer(-1), "Keep this many of the most probable tokens; -1 and 0: all"},
      {"presence_penalty", Rule::Number(-2, 2), "Against tokens that are in the answer"},
      {"frequency_penalty", Rule::Number(-2, 2), "Against tokens, as often as they were drawn"},
      {"repetition_penalty", Rule::NumberAbove(0, 10), "Against tokens of prompt and answer"},
      {"logit_bias", Rule::TokenMap(-100, 100, kMostBiases), "Added to the logits of token ids"},
      {"n", Rule::Integer(1, options.max_n), "Answers to each prompt"},
      {"seed", Rule::Integer(std::numeric_limits<int64_t>::min()), "Makes sampling repeatable"},
  };
}

Fields EndFields(int64_t least_tokens) {
  const Rule stop = Rule::String(1, kMostStopBytes);
  return {
      {"max_tokens", Rule::Integer(least_tokens), "Most tokens to generate"},
      {"max_completion_tokens", Rule::Integer(least_tokens),
       "Another name of max_tokens; equal if both are there"},
      {"min_tokens", Rule::Integer(0), "No end before; at most max_tokens"},
      {"stop", Rule::AnyOf({stop, Rule::List(stop, 0, kMostStops)}), "Texts that end the answer"},
      {"stop_token_ids", Rule::List(TokenId(), 0, kMostStopIds), "Tokens that end the answer"},
      {"ignore_eos", Rule::Boolean(), "The model's own end tokens are not drawn"},
      {"include_stop_str_in_output", Rule::Boolean(), "The text that ended it stays in the answer"},
  };
}

Fields StreamFields() {
  return {
      {"stream", Rule::Boolean(), "Server-sent events instead of one body"},
      {"stream_options",
       Rule::Object({
           {"include_usage", Rule::Boolean(), "A last chunk with the usage"},
           {"continuous_usage_stats", Rule::Boolean(),
            "With include_usage: the usage so far in every chunk"},
           {"include_obfuscation", Rule::NoEffect(), "Accepted; has no effect"},
       }),
       "Only with stream"},
      {"return_token_ids", Rule::Boolean(), "prompt_token_ids and token_ids in every choice"},
      {"cache_salt", Rule::String(0, kMostSaltBytes),
       "Prompts share cached prefixes only under the same salt"},
  };
}

// What both generating routes have.
Fields GenerationFields(const ApiOptions& options, int64_t least_tokens) {
  Fields fields = {Model()};
  Add(fields, SamplingFields(options));
  Add(fields, EndFields(least_tokens));
  Add(fields, StreamFields());
  return fields;
}

Field AddSpecialTokens() {
  return {"add_special_tokens", Rule::Boolean(),
          "false: without the tokens that the tokenizer's file puts around a text"};
}

Rule PromptRule() {
  const Rule ids = Rule::List(TokenId(), 1);
  return Rule::AnyOf({Rule::String(1), Rule::List(Rule::String(1), 1, kMostPrompts), ids,
                      Rule::List(ids, 1, kMostPrompts)});
}

Field Prompt(std::string_view about) { return {"prompt", PromptRule(), about, /*required=*/true}; }

Rule MessageRule() {
  const Rule part = Rule::Object({
      {"type", Rule::OneOf({"text"}), "Only text", /*required=*/true},
      {"text", Rule::String(), "", /*required=*/true},
  });
  return Rule::Object({
      {"role", Rule::OneOf({"system", "developer", "user", "assistant"}), "", /*required=*/true},
      {"content", Rule::AnyOf({Rule::String(), Rule::List(part, 1)}),
       "Text, or parts that are joined by line breaks; null only of an assistant"},
      {"reasoning_content", Rule::String(), "What an assistant thought before its answer"},
      {"reasoning", Rule::String(), "Another name of reasoning_content; equal if both are there"},
      {"refusal", Rule::Unsupported({R"("")"})},
      {"name", Rule::String(), "Accepted; the model's form of a chat has no place for it"},
      {"prefix", Rule::Unsupported({"false"})},
      {"partial", Rule::Unsupported({"false"})},
      {"tools", Rule::Unsupported({"[]"})},
      {"annotations", Rule::Unsupported({"[]"})},
      {"audio", Rule::Unsupported()},
      {"function_call", Rule::Unsupported()},
      {"tool_calls", Rule::Unsupported({"[]"})},
      {"tool_call_id", Rule::Unsupported()},
  });
}

// What makes a chat's prompt, the same for /tokenize.
Fields ChatPromptFields() {
  const Rule effort =
      Rule::OneOf({"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"});
  const Rule budget = Rule::Unsupported();
  return {
      {"messages", Rule::List(MessageRule(), 1), "The conversation", /*required=*/true},
      {"continue_final_message", Rule::Boolean(),
       "The last message is the assistant's and is continued"},
      {"thinking",
       Rule::AnyOf({Rule::Boolean(),
                    Rule::ClosedObject({{"type", Rule::OneOf({"enabled", "disabled", "adaptive"}),
                                         "", /*required=*/true},
                                        {"budget_tokens", budget}})}),
       "Whether the model reasons before it answers; all spellings must agree"},
      {"think", Rule::Boolean(), "As thinking"},
      {"enable_thinking", Rule::Boolean(), "As thinking"},
      {"reasoning_effort", effort, "none: no thinking"},
      {"reasoning", Rule::ClosedObject({{"effort", effort}, {"enabled", Rule::Boolean()}}),
       "As reasoning_effort and thinking"},
      {"output_config", Rule::ClosedObject({{"effort", effort}}), "As reasoning_effort"},
      {"chat_template_kwargs",
       Rule::ClosedObject({{"thinking", Rule::Boolean()},
                           {"enable_thinking", Rule::Boolean()},
                           {"reasoning_effort", effort},
                           {"drop_thinking", Rule::Boolean(),
                            "Reasoning before the last user message is left out"}}),
       "As the fields of these names"},
  };
}

Rule CompletionsRule(const ApiOptions& options) {
  Fields fields = {Prompt("Text, texts, token ids or lists of token ids")};
  Add(fields, GenerationFields(options, /*least_tokens=*/0));
  Add(fields, {
                  AddSpecialTokens(),
                  {"echo", Rule::Boolean(), "The prompt comes first; max_tokens may be 0 then"},
                  {"logprobs", Rule::Integer(0, options.max_logprobs),
                   "Log-probabilities, with this many of the best tokens"},
                  {"skip_special_tokens", Rule::Boolean(), "Control tokens give no text"},
                  {"best_of", Rule::Integer(1), "Equal to n, if it is there"},
              });
  AddDialects(fields);
  return Rule::Object(std::move(fields));
}

Rule ChatRule(const ApiOptions& options) {
  Fields fields = ChatPromptFields();
  Add(fields, GenerationFields(options, /*least_tokens=*/1));
  Add(fields, {
                  {"add_special_tokens", Rule::Boolean(), "Has no effect in chats"},
                  {"logprobs", Rule::Boolean(), "Log-probabilities of the answer's tokens"},
                  {"top_logprobs", Rule::Integer(0, options.max_logprobs),
                   "Only with logprobs: this many of the best tokens"},
                  {"include_reasoning", Rule::Boolean(), "false hides what the model thought"},
              });
  AddDialects(fields);
  return Rule::Object(std::move(fields));
}

Rule TokenizeTextRule() {
  return Rule::Object({
      {"prompt", Rule::String(), "A text; control tokens in it are recognized", /*required=*/true},
      Model(),
      AddSpecialTokens(),
      {"return_token_strs", Rule::Boolean(), "Each token's text, too"},
  });
}

Rule TokenizeChatRule() {
  Fields fields = ChatPromptFields();
  Add(fields,
      {
          Model(),
          {"add_special_tokens", Rule::Boolean(), "Has no effect in chats"},
          {"add_generation_prompt", Rule::Boolean(), "false: without the opening of the answer"},
          {"return_token_strs", Rule::Boolean(), "Each token's text, too"},
      });
  AddRefused(fields);
  return Rule::Object(std::move(fields));
}

Rule DetokenizeRule() {
  return Rule::Object({
      {"tokens", Rule::List(TokenId(), 0), "Token ids", /*required=*/true},
      Model(),
  });
}

}  // namespace

FieldTable::FieldTable(const ApiOptions& options)
    : completions_(CompletionsRule(options)),
      chat_(ChatRule(options)),
      tokenize_text_(TokenizeTextRule()),
      tokenize_chat_(TokenizeChatRule()),
      detokenize_(DetokenizeRule()) {}

namespace {

ApiResult<void> MergeAliases(BodyValue& body, const Rule& rule) {
  for (const Field& field : rule.fields) {
    if (field.same_as.empty() || !BodyFields(body).Has(field.name)) continue;
    const BodyValue value = body[std::string(field.name)];
    BodyValue& own = body[std::string(field.same_as)];
    if (!own.is_null() && own != value) {
      return tl::unexpected(
          FieldError("invalid_value", std::string(field.name),
                     fmt::format("{0} is another name of {1}, which has another value; keep one of "
                                 "them",
                                 field.name, field.same_as)));
    }
    own = value;
  }
  return {};
}

}  // namespace

ApiResult<void> CheckBody(BodyValue& body, const Rule& rule, const ApiOptions& options,
                          std::vector<std::string>& ignored) {
  UnknownNames unknown;
  if (auto fault = CheckValue(rule, body, "", unknown)) return tl::unexpected(*std::move(fault));
  ignored = unknown.names();
  if (ignored.empty() || !options.reject_unknown_fields) return MergeAliases(body, rule);
  return tl::unexpected(
      FieldError("unknown_field", ignored.front(),
                 fmt::format("{} is not a field of this API; leave it out", ignored.front())));
}

ApiResult<BodyValue> ParseChecked(std::string_view body, const Rule& rule,
                                  const ApiOptions& options, std::vector<std::string>& ignored) {
  auto parsed = ParseBody(body);
  if (!parsed) return parsed;
  if (auto checked = CheckBody(*parsed, rule, options, ignored); !checked) {
    return tl::unexpected(std::move(checked.error()));
  }
  return parsed;
}

}  // namespace halfbyte
