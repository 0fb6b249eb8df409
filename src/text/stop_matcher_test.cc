#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace halfbyte {
namespace {

struct Shown {
  std::string text;
  std::optional<size_t> matched;
  bool operator==(const Shown&) const = default;
};

// The rule word by word.
Shown Slowly(const std::vector<std::string>& strings, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < strings.size(); ++i) {
      const bool ends = end >= strings[i].size() &&
                        text.compare(end - strings[i].size(), strings[i].size(), strings[i]) == 0;
      if (ends && (!best || strings[i].size() > strings[*best].size())) best = i;
    }
    if (best) return {text.substr(0, end - strings[*best].size()), best};
  }
  return {text, std::nullopt};
}

Shown InPieces(const std::vector<std::string>& strings, const std::string& text,
               std::mt19937& random) {
  StopMatcher matcher(strings);
  Shown shown;
  for (size_t at = 0; at < text.size();) {
    const size_t count = 1 + random() % 4;
    shown.text += matcher.Push(std::string_view(text).substr(at, count), true);
    at += count;
  }
  shown.text += matcher.Flush();
  shown.matched = matcher.matched();
  return shown;
}

TEST(StopMatcher, EverySplitShowsWhatTheRuleSays) {
  std::mt19937 random(1);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t i = 1 + random() % most; i > 0; --i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> strings;
    for (size_t i = random() % 4; i > 0; --i) strings.push_back(word(6));
    const std::string text = word(30);
    const Shown expected = Slowly(strings, text);
    const Shown shown = InPieces(strings, text, random);
    ASSERT_EQ(shown.text, expected.text) << text;
    ASSERT_EQ(shown.matched.has_value(), expected.matched.has_value()) << text;
    if (shown.matched) {
      ++matches;
      ASSERT_EQ(strings[*shown.matched], strings[*expected.matched]) << text;
    }
  }
  EXPECT_GT(matches, 5000);
}

TEST(StopMatcher, HoldsNoMoreThanWhatMayBeginAMatch) {
  StopMatcher matcher(std::vector<std::string>{"\n\nUser:", "END"});
  EXPECT_EQ(matcher.Push("one E", true), "one ");
  EXPECT_EQ(matcher.Push("\n", true), "E");
  EXPECT_EQ(matcher.Push("\nUse", true), "");
  EXPECT_EQ(matcher.Push("d", true), "\n\nUsed");
  EXPECT_EQ(matcher.Push("E", true), "");
  EXPECT_EQ(matcher.Flush(), "E");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, AMatchThatEndsTooEarlyDoesNotCount) {
  StopMatcher matcher(std::vector<std::string>{"ab"});
  std::string shown = matcher.Push("xab", false);
  shown += matcher.Push("a", false);
  EXPECT_EQ(shown, "xab");
  EXPECT_EQ(matcher.Push("b and", true), "");  // began before, ends now
  EXPECT_EQ(matcher.matched(), 0u);
  EXPECT_EQ(matcher.Push("more", true), "");
}

TEST(StopMatcher, WithoutStringsEverythingPasses) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Push("anything", true), "anything");
  EXPECT_EQ(matcher.Flush(), "");
}

}  // namespace
}  // namespace halfbyte
