#include "text/chat_splitter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace halfbyte {
namespace {

struct Answer {
  std::string reasoning, content;
  bool operator==(const Answer&) const = default;
};

void Add(Answer& answer, const ChatSplitter::Pieces& pieces) {
  answer.reasoning += pieces.reasoning;
  answer.content += pieces.content;
}

// What of a test's text is a control token: written in guillemets here.
//   «<think>»  «</think>»  <«｜DSML｜»invoke ...
void PushAll(ChatSplitter& splitter, std::string_view text, size_t piece, Answer& answer) {
  constexpr std::string_view kOpen = "«", kClose = "»";
  while (!text.empty()) {
    const size_t open = std::min(text.find(kOpen), text.size());
    for (size_t at = 0; at < open; at += piece) {
      Add(answer, splitter.Push(text.substr(at, std::min(piece, open - at))));
      EXPECT_LE(splitter.held(), 4);
    }
    text.remove_prefix(open);
    if (text.empty()) return;
    text.remove_prefix(kOpen.size());
    const size_t close = text.find(kClose);
    Add(answer, splitter.PushControl(text.substr(0, close)));
    text.remove_prefix(close + kClose.size());
  }
}

Answer Split(const std::string& text, bool thinking, size_t piece) {
  ChatSplitter splitter(thinking);
  Answer answer;
  PushAll(splitter, text, piece, answer);
  Add(answer, splitter.Flush());
  return answer;
}

Answer Split(const std::string& text, bool thinking) { return Split(text, thinking, text.size()); }

const std::string kCalls =
    "<«｜DSML｜»tool_calls>\n<«｜DSML｜»invoke name=\"f\">\n<«｜DSML｜»parameter name=\"x\" "
    "string=\"true\">a < b "
    "2>&1</«｜DSML｜»parameter>\n</«｜DSML｜»invoke>\n</«｜DSML｜»tool_calls>";

TEST(ChatSplitter, ReasoningEndsAtItsToken) {
  EXPECT_EQ(Split("why\n\n«</think>»\n\nso", true), (Answer{"why\n\n", "\n\nso"}));
  EXPECT_EQ(Split("why", true), (Answer{"why", ""}));
  EXPECT_EQ(Split("so", false), (Answer{"", "so"}));
  EXPECT_EQ(Split("a«<think>»b«</think>»c", false), (Answer{"", "abc"}));  // strays vanish
  EXPECT_EQ(Split("a«<think>»b", true), (Answer{"a<think>b", ""}));
}

TEST(ChatSplitter, BlocksAreDiscardedWithTheNewlinesBeforeThem) {
  EXPECT_EQ(Split("so\n\n\n" + kCalls + " and", false), (Answer{"", "so\n and"}));
  EXPECT_EQ(Split("why\n" + kCalls + "so", true), (Answer{"why\n", "so"}));
  EXPECT_EQ(Split(std::string("x").append(kCalls, 0, 60), false), (Answer{"", "x"}));  // cut
  EXPECT_EQ(Split("x<«|DSML|»invoke name=\"f\">y</«|DSML|»invoke>z", false), (Answer{"", "xz"}));
  EXPECT_EQ(Split("x\n</«｜DSML｜»tool_calls>y", false), (Answer{"", "x\ny"}));  // a stray closer
}

TEST(ChatSplitter, CountsWhatItKeepsOut) {
  const auto suppressed = [](const std::string& text, bool thinking, size_t piece) {
    ChatSplitter splitter(thinking);
    Answer answer;
    PushAll(splitter, text, piece, answer);
    splitter.Flush();
    return splitter.suppressed();
  };
  for (const size_t piece : {1, 3, 1000}) {
    EXPECT_EQ(suppressed("why«</think>»so" + kCalls, true, piece),
              (ChatSplitter::Suppressed{.tags = 6}));
    EXPECT_EQ(suppressed("a«<think>»b«</think>»c«</think>»", false, piece),
              (ChatSplitter::Suppressed{.thinks = 3}));
    EXPECT_EQ(suppressed("a«<think>»«</think>»«</think>»", true, piece),
              (ChatSplitter::Suppressed{.thinks = 1}));
    EXPECT_EQ(suppressed("x<«｜DSML｜»tool_bells>y<«|DSML|»invoke na", false, piece),
              (ChatSplitter::Suppressed{.malformed = 1, .unfinished = 1}));
    EXPECT_EQ(suppressed("a < b, <thin", false, piece), ChatSplitter::Suppressed());
  }
}

TEST(ChatSplitter, MalformedTagsAreDiscarded) {
  EXPECT_EQ(Split("x<«｜DSML｜»tool_bells>y", false), (Answer{"", "xells>y"}));
  EXPECT_EQ(Split("x<«｜DSML｜»<«｜DSML｜»tool_calls>y", false), (Answer{"", "x"}));
  EXPECT_EQ(Split("x<«｜DSML｜»inv«｜DSML｜»y«</think>»z", false), (Answer{"", "xyz"}));
  std::string endless = "x<«｜DSML｜»invoke ";
  endless.append(600, 'n').append(">y");
  EXPECT_EQ(Split(endless, false).content.substr(0, 2), "xn");
}

TEST(ChatSplitter, WhatOnlyLooksLikeMarkupIsText) {
  for (const char* text : {"a < b", "a</b", "<thin", "</thinker>", "<｜User｜>", "<|DSM|", "<<<",
                           "<think>", "</think>", "<｜DSML｜tool_calls>x</|DSML|tool_calls>",
                           "\n\n\n\n", "x\n\n", "<\n<", "｜DSML｜", "<", "\n<"}) {
    EXPECT_EQ(Split(text, false), (Answer{"", text})) << text;
    EXPECT_EQ(Split(text, true), (Answer{text, ""})) << text;
  }
}

TEST(ChatSplitter, EverySplitGivesTheSame) {
  const std::string parts[] = {
      "«<think>»",  "«</think>»",  "\n",           "\n\n",    "<",       "</",          "a",
      "é",          "<«｜DSML｜»", "</«｜DSML｜»", "<|DSML|", "<think>", "tool_calls>", "invoke ",
      "parameter>", ">",           kCalls};
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += parts[random() % std::size(parts)];
    const bool thinking = random() % 2 == 0;
    const Answer whole = Split(text, thinking);
    for (const size_t piece : {1, 2, 3, 5, 7}) {
      ASSERT_EQ(Split(text, thinking, piece), whole) << text << " in pieces of " << piece;
    }
    for (const std::string& visible : {whole.reasoning, whole.content}) {
      ASSERT_EQ(visible.find("<｜DSML｜"), std::string::npos) << text;
      ASSERT_EQ(visible.find("</｜DSML｜"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace halfbyte
