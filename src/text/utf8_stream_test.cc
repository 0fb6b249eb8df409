#include "text/utf8_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "text/utf8.h"

namespace halfbyte {
namespace {

constexpr char kBad[] = "\xEF\xBF\xBD";

// An oracle that shares no code with the stream: decodes code points from the definition of UTF-8.
bool IsUtf8ByDefinition(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    const auto lead = static_cast<uint8_t>(s[i]);
    const size_t n = lead < 0x80       ? 1
                     : lead >> 5 == 6  ? 2
                     : lead >> 4 == 14 ? 3
                     : lead >> 3 == 30 ? 4
                                       : 0;
    if (n == 0 || i + n > s.size()) return false;
    uint32_t point = n == 1 ? lead : lead & (0xFFu >> (n + 1));
    for (size_t k = 1; k < n; ++k) {
      const auto byte = static_cast<uint8_t>(s[i + k]);
      if ((byte & 0xC0) != 0x80) return false;
      point = point << 6 | (byte & 0x3F);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < least[n] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
    i += n;
  }
  return true;
}

// Every way to cut `bytes` in up to three pieces, and byte by byte.
void ExpectTextForEverySplit(std::string_view bytes, std::string_view text) {
  for (size_t a = 0; a <= bytes.size(); ++a) {
    for (size_t b = a; b <= bytes.size(); ++b) {
      Utf8Stream stream;
      std::string joined;
      for (const auto piece : {bytes.substr(0, a), bytes.substr(a, b - a), bytes.substr(b)}) {
        const std::string out = stream.Push(piece);
        EXPECT_TRUE(IsUtf8ByDefinition(out)) << "a piece is broken UTF-8";
        joined += out;
      }
      joined += stream.Flush();
      ASSERT_EQ(joined, text) << "cut at " << a << " and " << b;
    }
  }
  Utf8Stream stream;
  std::string joined;
  for (const char c : bytes) joined += stream.Push(std::string_view(&c, 1));
  EXPECT_EQ(joined + stream.Flush(), text);
}

TEST(Utf8Stream, HoldsACharacterUntilItsLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("\xF0\x9F"), "");
  EXPECT_EQ(stream.Push("\x98\x80"), "\U0001F600");
  EXPECT_EQ(stream.Push("\xE4\xBD"), "");
  EXPECT_EQ(stream.Push("\xA0"), "\u4F60");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(Utf8Stream, GivesTheSameTextForEverySplitOfValidText) {
  for (const char* text : {"", "a", "é", "你好", "\U0001F600", "a\u00e9\u4f60\U0001F600z",
                           "\U0001F469\u200d\U0001F467", "\u0080\u07ff\u0800\uffff\U0010ffff"}) {
    ExpectTextForEverySplit(text, text);
  }
}

TEST(Utf8Stream, WritesOneReplacementPerMaximalInvalidPart) {
  const struct {
    std::string bytes;
    int replacements;
    std::string tail;
  } cases[] = {
      {"\x80", 1, ""},      // a lone continuation byte
      {"\xBF\xBF", 2, ""},  //
      {"\xC0\x80", 2, ""},  // overlong: C0 starts nothing
      {"\xC1\xBF", 2, ""},  //
      {"\xC3", 1, ""},      // cut at the end
      {"\xC3"
       "A",
       1, "A"},                 //
      {"\xE0\x80\x80", 3, ""},  // overlong: 80 cannot follow E0
      {"\xE0\xA0", 1, ""},      // two bytes of one character
      {"\xE0\xA0"
       "A",
       1, "A"},                     //
      {"\xED\xA0\x80", 3, ""},      // a surrogate
      {"\xF0\x80\x80\x80", 4, ""},  // overlong
      {"\xF0\x9F\x98", 1, ""},      //
      {"\xF0\x9F\x98"
       "A",
       1, "A"},                     //
      {"\xF0\x9F\xF0\x9F", 2, ""},  //
      {"\xF4\x90\x80\x80", 4, ""},  // beyond U+10FFFF
      {"\xF5\x80\x80\x80", 4, ""},  //
      {"\xFE\xFF", 2, ""},          //
      {"\xF1\x80\x80\xE1\x80\xC2"
       "b",
       3, "b"},  // the Unicode standard's own example
      {"\xE4\xBD\xF0\x9F\x98\x80", 1, "\U0001F600"},
  };
  for (const auto& test : cases) {
    std::string text;
    for (int i = 0; i < test.replacements; ++i) text += kBad;
    ExpectTextForEverySplit(test.bytes, text + test.tail);
    ExpectTextForEverySplit("x" + test.bytes, "x" + text + test.tail);
  }
}

TEST(Utf8Stream, EveryPairOfBytesIsSplitInvariantAndNeverBroken) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string bytes = {static_cast<char>(a), static_cast<char>(b), '\x80', '\x80'};
      const std::string text = ToValidUtf8(bytes);
      ASSERT_TRUE(IsUtf8ByDefinition(text)) << a << " " << b;
      ASSERT_EQ(IsUtf8ByDefinition(bytes), text == bytes) << a << " " << b;
      ASSERT_EQ(IsUtf8ByDefinition(bytes), IsValidUtf8(bytes)) << a << " " << b;
      ExpectTextForEverySplit(bytes, text);
    }
  }
}

RC_GTEST_PROP(Utf8Stream, RandomBytesInRandomPiecesGiveTheSameText, ()) {
  // Lead and continuation bytes are frequent, so that characters and near misses both occur.
  const auto byte = rc::gen::weightedOneOf<uint8_t>(
      {{2, rc::gen::arbitrary<uint8_t>()},
       {3, rc::gen::inRange<uint8_t>(0x80, 0xC0)},
       {2, rc::gen::element<uint8_t>(0xC3, 0xE0, 0xE4, 0xED, 0xF0, 0xF4)}});
  const auto pieces = *rc::gen::container<std::vector<std::vector<uint8_t>>>(
      rc::gen::container<std::vector<uint8_t>>(byte));
  Utf8Stream stream;
  std::string all;
  std::string joined;
  for (const auto& piece : pieces) {
    const std::string bytes(piece.begin(), piece.end());
    all += bytes;
    const std::string out = stream.Push(bytes);
    RC_ASSERT(IsUtf8ByDefinition(out));
    joined += out;
  }
  joined += stream.Flush();
  RC_ASSERT(joined == ToValidUtf8(all));
  RC_ASSERT(IsUtf8ByDefinition(joined));
}

}  // namespace
}  // namespace halfbyte
