// The output stage on the bundled model's tokenizer.
#include "engine/choice_output.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/text_test_tokenizer.h"
#include "text/utf8.h"

namespace halfbyte {
namespace {

class ChoiceOutputTest : public testing::Test {
 protected:
  std::vector<int32_t> Encode(const std::string& text) {
    return *tokenizer_.Encode(text, ControlTokens::kRecognized);
  }
  // All events of the tokens joined; every token brings an entry if `logprobs`.
  OutputEvent Run(const Request& request, const std::vector<int32_t>& tokens,
                  bool logprobs = false) {
    ChoiceOutput output(request, &tokenizer_, eos_, /*first_offset=*/0);
    OutputEvent all;
    for (size_t i = 0; i < tokens.size() && !output.finished(); ++i) {
      OutputEvent event;
      std::optional<LogprobEntry> entry;
      if (logprobs) entry = LogprobEntry{.chosen = {tokens[i], -1.0 * static_cast<double>(i)}};
      output.Add(tokens[i], entry, event);
      EXPECT_TRUE(IsValidUtf8(event.content) && IsValidUtf8(event.reasoning));
      Append(all, std::move(event));
    }
    if (!output.finished()) {
      OutputEvent event;
      output.End({.reason = FinishReason::kAbort}, event);
      Append(all, std::move(event));
    }
    return all;
  }

  const Tokenizer& tokenizer_ = TestTokenizer();
  const std::vector<int32_t> eos_ = {1};
  Request request_{.max_tokens = 1000};
};

const std::string kText = "One 😀 two 日本語, déjà vu\n\nUser: three";

TEST_F(ChoiceOutputTest, PiecesJoinToTheText) {
  const OutputEvent all = Run(request_, Encode(kText));
  EXPECT_EQ(all.content, kText);
  EXPECT_EQ(all.finish->reason, FinishReason::kAbort);
}

TEST_F(ChoiceOutputTest, BytesThatAreNotUtf8BecomeReplacements) {
  std::vector<int32_t> tokens = Encode("a\xF0\x9F\x98");  // an emoji cut
  EXPECT_EQ(Run(request_, tokens).content, "a\xEF\xBF\xBD");
  const std::vector<int32_t> more = Encode("b");
  tokens.insert(tokens.end(), more.begin(), more.end());
  EXPECT_EQ(Run(request_, tokens).content,
            "a\xEF\xBF\xBD"
            "b");
}

TEST_F(ChoiceOutputTest, EndTokensEndTheTextAndGiveNone) {
  std::vector<int32_t> tokens = Encode("some words");
  const size_t count = tokens.size();
  tokens.push_back(1);
  tokens.push_back(50);
  OutputEvent all = Run(request_, tokens, /*logprobs=*/true);
  EXPECT_EQ(all.content, "some words");
  EXPECT_EQ(all.finish, Finish{.reason = FinishReason::kStop});
  EXPECT_EQ(all.token_ids.size(), count + 1);
  EXPECT_EQ(all.content_logprobs.size(), count);

  request_.stop.ignore_eos = true;
  EXPECT_EQ(Run(request_, tokens).finish->reason, FinishReason::kAbort);
  request_.stop.token_ids = {50};
  EXPECT_EQ(Run(request_, tokens).finish->stop_token, 50);
}

TEST_F(ChoiceOutputTest, ControlTokensGiveTextOnlyIfAskedFor) {
  const std::vector<int32_t> tokens = Encode("a<｜User｜>b");
  EXPECT_EQ(Run(request_, tokens).content, "ab");
  request_.output.skip_special_tokens = false;
  EXPECT_EQ(Run(request_, tokens).content, "a<｜User｜>b");
}

TEST_F(ChoiceOutputTest, LengthReleasesWhatWasHeld) {
  request_.stop.strings = {"three and more"};
  const std::vector<int32_t> tokens = Encode(kText);
  request_.max_tokens = std::ssize(tokens);
  const OutputEvent all = Run(request_, tokens);
  EXPECT_EQ(all.content, kText);
  EXPECT_EQ(all.finish->reason, FinishReason::kLength);
}

TEST_F(ChoiceOutputTest, StopStringsCutTheTextWhereverTheyLie) {
  const std::vector<int32_t> tokens = Encode(kText);
  for (size_t at = 0; at < kText.size(); ++at) {
    for (const size_t length : {1, 4, 9}) {
      const std::string stop = kText.substr(at, length);
      if (!IsValidUtf8(stop)) continue;
      request_.stop.strings = {stop, "not there"};
      request_.stop.include_string = false;
      OutputEvent all = Run(request_, tokens, /*logprobs=*/true);
      const size_t first = kText.find(stop);
      ASSERT_EQ(all.content, kText.substr(0, first)) << stop;
      ASSERT_EQ(all.finish->reason, FinishReason::kStop);
      ASSERT_EQ(all.finish->stop_string, stop);
      for (const LogprobEntry& entry : all.content_logprobs) {
        ASSERT_LT(entry.text_offset, std::max<int64_t>(1, CountCharacters(all.content))) << stop;
      }
      request_.stop.include_string = true;
      ASSERT_EQ(Run(request_, tokens).content, kText.substr(0, first + stop.size()));
    }
  }
}

TEST_F(ChoiceOutputTest, NoStopStringBeforeMinTokens) {
  const std::vector<int32_t> tokens = Encode("a b a b a b");
  request_.stop.strings = {"b"};
  request_.min_tokens = std::ssize(Encode("a b a"));
  EXPECT_EQ(Run(request_, tokens).content, "a b a ");
}

TEST_F(ChoiceOutputTest, EntriesComeOncePerTokenInOrderWithTheirOffsets) {
  const std::vector<int32_t> tokens = Encode(kText);
  const OutputEvent all = Run(request_, tokens, /*logprobs=*/true);
  ASSERT_EQ(all.content_logprobs.size(), tokens.size());
  std::string before;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const LogprobEntry& entry = all.content_logprobs[i];
    EXPECT_EQ(entry.chosen.token, tokens[i]);
    // Inside a character the offset is that of the character.
    EXPECT_EQ(entry.text_offset, CountCharacters(before) - (IsValidUtf8(before) ? 0 : 1)) << i;
    before += *tokenizer_.TokenBytes(tokens[i]);
  }
}

TEST_F(ChoiceOutputTest, AChatAnswerHasTwoChannels) {
  request_.output = {.kind = OutputFormat::Kind::kChat, .starts_in_reasoning = true};
  request_.stop.strings = {"wh"};  // content only
  std::vector<int32_t> tokens = Encode("why 😀</think>so, what");
  const OutputEvent all = Run(request_, tokens, /*logprobs=*/true);
  EXPECT_EQ(all.reasoning, "why 😀");
  EXPECT_EQ(all.content, "so, ");
  EXPECT_EQ(all.finish->stop_string, "wh");
  const size_t markup = 1;
  EXPECT_EQ(all.reasoning_logprobs.size(), Encode("why 😀").size());
  EXPECT_LE(all.content_logprobs.size() + all.reasoning_logprobs.size() + markup, tokens.size());
  EXPECT_EQ(all.content_logprobs[0].text_offset, 0);
}

// Ordinary tokens that spell markup are what the model says.
TEST_F(ChoiceOutputTest, AModelThatQuotesItsMarkupIsHeard) {
  request_.output = {.kind = OutputFormat::Kind::kChat, .starts_in_reasoning = true};
  const std::string quoted = "ends with </think>, then <｜DSML｜tool_calls> ";
  std::vector<int32_t> tokens = *tokenizer_.Encode(quoted, ControlTokens::kAsText);
  tokens.push_back(*tokenizer_.IdOf("</think>"));
  const std::vector<int32_t> answer = *tokenizer_.Encode("<think>so", ControlTokens::kAsText);
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  const OutputEvent all = Run(request_, tokens, /*logprobs=*/true);
  EXPECT_EQ(all.reasoning, quoted);
  EXPECT_EQ(all.content, "<think>so");
  EXPECT_EQ(all.reasoning_logprobs.size() + all.content_logprobs.size() + 1, tokens.size());
}

TEST_F(ChoiceOutputTest, ReasoningTokensAreCountedUpToTheirEnd) {
  request_.output = {.kind = OutputFormat::Kind::kChat, .starts_in_reasoning = true};
  ChoiceOutput output(request_, &tokenizer_, eos_, 0);
  for (const int32_t token : Encode("why</think>so")) {
    OutputEvent event;
    output.Add(token, std::nullopt, event);
  }
  EXPECT_EQ(output.reasoning_tokens(), std::ssize(Encode("why")) + 1);
  EXPECT_FALSE(output.in_reasoning());
}

}  // namespace
}  // namespace halfbyte
