#include "text/regex.h"

#include <gtest/gtest.h>

#include <string>

#include "text/regex_syntax.h"

namespace halfbyte {
namespace {

// The first match in `subject`, "-" if none.
std::string FirstMatch(std::string_view pattern, std::string_view subject) {
  const auto regex = Regex::Compile(pattern);
  if (!regex) return "error: " + regex.error().message;
  RegexScratch scratch;
  const auto match = regex->Find(subject, 0, &scratch);
  if (!match) return "error: " + match.error().message;
  return *match ? std::string(subject.substr((*match)->begin, (*match)->end - (*match)->begin))
                : "-";
}

TEST(Regex, MeansWhatTheReferenceDialectMeans) {
  const struct {
    const char* pattern;
    const char* subject;
    const char* match;
  } cases[] = {
      {R"(\p{N}{1,3})", "ab1234", "123"},
      {R"(\p{N}+)", "\u0661\u00bd\u2167", "\u0661\u00bd\u2167"},
      {R"(\d+)", "\u00bd\u0661", "\u0661"},  // decimal digits only
      {R"(\s+)", "a \t\u0085\u2028\u3000b", " \t\u0085\u2028\u3000"},
      {R"(\s+)", "\u180e\u200b", "-"},  // no white space since Unicode 6.3
      {R"(\S+)", " \u180e ", "\u180e"},
      {R"([^\s]+)", " \u180e ", "\u180e"},
      {R"(\w+)", "-e\u0301_9\u203f-",
       "e\u0301_9\u203f"},  // marks and connectors are word characters
      {R"(\W+)", "a-!b", "-!"},
      {R"([\w-]+)", " a-b ", "a-b"},
      {R"(\v)", "\n\x0b", "\x0b"},  // one character, not a class
      {R"(\u4f60\x{597d}\x41)", "\u4f60\u597dA", "\u4f60\u597dA"},
      {R"(\p{^L}+)", "ab12", "12"},
      {R"(\P{L}+)", "ab12", "12"},
      {R"(\pL+)", "12ab", "ab"},
      {R"(\p{Han}+)", "a\u4f60\u3001b", "\u4f60"},  // U+3001 only shares the script
      {R"([\p{Han}\p{Hiragana}]+)", "a\u4f60\u3042\u3001", "\u4f60\u3042"},
      {R"([^\r\n\p{L}\p{P}\p{S}]+)", "a.+ 1\nb", " 1"},
      {R"(^b$)", "a\nb\nc", "b"},  // lines, as in Ruby
      {R"(a.b)", "a\nb a\rb", "a\rb"},
      {R"((?i:'S|'LL))", "it's", "'s"},
      {R"(a{,2}b)", "aaab", "aab"},
      {R"(a{x)", "a{x", "a{x"},
      {R"(a{)", "a{", "a{"},
      {R"((a|b)+c)", "abac", "abac"},
      {R"(\s+(?!\S))", "a   b", "  "},
      {R"((?<=a)b)", "bab", "b"},
      {R"(a++b)", "aab", "aab"},
      {R"([!-/\[\]\\^_`{|}~-]+)", "a[]\\^-b", "[]\\^-"},
      {R"(\A\.\z)", ".", "."},
      {"\xe4\xbd\xa0+", "\u4f60\u4f60", "\u4f60\u4f60"},
      {R"([\p{P}]+)", "a!\"#%&'()*,-./:;?@[\\]_{}$", "!\"#%&'()*,-./:;?@[\\]_{}"},
      {R"([\p{S}]+)", "a$+<=>^`|~.", "$+<=>^`|~"},
      {R"(\p{S}+)", "a$+<=>^`|~.", "$+<=>^`|~"},
      {R"([\p{L}&&[^\p{Han}]]+)", "\u4f60ab1", "ab"},
      {R"([^\p{L}&&[^\p{Han}]]+)", "ab\u4f601", "\u4f601"},
      {R"([a-f&&b-z&&[^d]x]+)", "abcdef", "bc"},
      {R"([a[bc]]+)", "xabcd", "abc"},
      {R"([^a[bc]]+)", "axyb", "xy"},
      {R"([[^a]]+)", "abca", "bc"},
      {R"([^[^a]]+)", "bcaad", "aa"},
      {R"([a&&^a]+)", "^a", "a"},
      {R"([a[b]^]+)", "x^ab", "^ab"},
      {R"([a&]+)", "x&a&", "&a&"},
  };
  for (const auto& test : cases) {
    EXPECT_EQ(FirstMatch(test.pattern, test.subject), test.match) << test.pattern;
  }
}

// The ASCII members that the translation adds must not change what a class matches.
TEST(Regex, PropertiesMatchTheSameAsciiCharactersAloneAndInAClass) {
  for (const std::string property : {"L", "Lu", "Ll", "N", "Nd", "P", "S"}) {
    // Compiled without our additions, through a name that has none.
    const auto plain = Regex::Compile("(?=[\\P{" + property + "}])[^x]|(?=\\P{" + property + "})x");
    const auto ours = Regex::Compile("\\p{" + property + "}");
    ASSERT_TRUE(plain && ours);
    RegexScratch scratch;
    for (char c = 0; c < 127; ++c) {
      const std::string_view subject(&c, 1);
      EXPECT_NE(plain->Find(subject, 0, &scratch)->has_value(),
                ours->Find(subject, 0, &scratch)->has_value())
          << property << " " << int{c};
    }
  }
}

TEST(Regex, RefusesByNameWhatItWouldMisread) {
  const struct {
    const char* pattern;
    const char* named;
  } cases[] = {
      {R"(\bword)", "\\b"},
      {R"(\h)", "\\h"},
      {R"(\R)", "\\R"},
      {R"(\X)", "\\X"},
      {R"(\K)", "\\K"},
      {R"(\G)", "\\G"},
      {R"(\Qa\E)", "\\Q"},
      {R"((a)\1)", "\\1"},
      {R"(\C)", "\\C"},
      {R"([[:alpha:]])", "[: inside a class"},
      {R"([a&&])", "empty class"},
      {R"([&&a])", "empty class"},
      {R"([a[]])", "empty class"},
      {R"([a&&\W])", "\\W"},
      {"[a[b]", "bracket"},
      {"[a&&", "bracket"},
      {"[[[[[[[[[[a]]]]]]]]]]", "deep"},
      {R"([])", "empty class"},
      {R"([^]a])", "empty class"},
      {R"((?<n>a))", "group"},
      {R"((?i)a)", "group"},
      {R"((?R))", "group"},
      {R"((?#c))", "group"},
      {R"((*FAIL))", "(*"},
      {R"(a{2,3}+)", "interval"},
      {R"(a{2}?)", "{n}?"},
      {R"(\xff)", "\\x80"},
      {R"(\x4)", "\\x"},
      {R"(\u12)", "\\u"},
      {R"(\x{zz})", "\\x"},
      {R"(\p{)", "brace"},
      {R"(\p)", "\\p"},
      {R"(\p{a b})", "\\p"},
      {R"([\W])", "\\W"},
      {R"([\b])", "\\b"},
      {"a\\", "backslash"},
      {"[a", "bracket"},
      {"(a", "compile"},
      {"a)", "compile"},
      {"*a", "compile"},
      {R"(\p{Nonsense})", "compile"},
      {R"([z-a])", "compile"},
      {R"(\x{110000})", "compile"},
      {"(?:(?:ab){999}){999}", "compile"},
  };
  for (const auto& test : cases) {
    const auto regex = Regex::Compile(test.pattern);
    ASSERT_FALSE(regex) << test.pattern;
    EXPECT_NE(regex.error().message.find(test.named), std::string::npos)
        << test.pattern << ": " << regex.error().message;
  }
  EXPECT_FALSE(Regex::Compile(std::string(20'000, 'a')));
  EXPECT_FALSE(Regex::Compile(std::string(1000, '(') + std::string(1000, ')')));
}

TEST(Regex, LongRunsOfAClassAreWithinTheStepLimit) {
  const std::string letters(1 << 20, 'a');
  EXPECT_EQ(FirstMatch(R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)", letters).size(), letters.size());
  const std::string spaces(1 << 20, ' ');
  EXPECT_EQ(FirstMatch(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces + "x").size(), spaces.size() - 1);
}

}  // namespace
}  // namespace halfbyte
