#include "text/python_literals.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "text/utf8.h"

namespace halfbyte {
namespace {

PythonLiterals Read(std::string_view text) {
  auto literals = ReadPythonLiterals(text, "a.py");
  EXPECT_TRUE(literals) << literals.error().message;
  return literals.value_or(PythonLiterals());
}

// What the name TEXT is given; "-" if it has no text.
std::string TextOf(std::string_view source) {
  const PythonLiterals literals = Read(source);
  const auto found = literals.strings.find("TEXT");
  return found == literals.strings.end() ? "-" : found->second;
}

TEST(PythonLiterals, FindsStringsInAllTheirForms) {
  const std::pair<const char*, const char*> cases[] = {
      {"TEXT = \"a\"", "a"},
      {"TEXT='a'\n", "a"},
      {"TEXT: str = 'a'  # 'b'\n", "a"},
      {"TEXT: Dict[str, 'x'] = 'a'\n", "a"},
      {"TEXT = ''\n", ""},
      {"TEXT = (\n    \"a\\n\"  # one\n    'b'\n)\n", "a\nb"},
      {"TEXT = (('a'))", "a"},
      {"TEXT = 'a' \\\n  'b'\n", "ab"},
      {"TEXT = u'a' r'\\n' \"\"\"x\n'\"y\"\"\"\r\n", "a\\nx\n'\"y"},
      {"TEXT = '''a\r\nb'''", "a\nb"},
      {"TEXT = 'a\\\nb'", "ab"},
      {R"(TEXT = '\x41\u00e9\U0001F642\101\0z\\\'\"\t\q')", "A\u00e9\U0001F642A\0z\\'\"\t\\q"},
      {"\xEF\xBB\xBFTEXT = '\u4f60'", "\u4f60"},
      {"x = [1, 2,\nTEXT, 'b']\nTEXT = 'a'", "a"},
      {"def f():\n  TEXT = 'b'\n\nTEXT = 'a'\nif x:\n  TEXT = 'c'\n", "a"},
      {"TEXT = 'b'; y = 1\nTEXT = 'a'\n", "a"},
  };
  for (const auto& [source, text] : cases) {
    // One of the texts holds a NUL.
    EXPECT_EQ(TextOf(source).substr(0, std::string(text).size()), text) << source;
  }
  EXPECT_EQ(TextOf(R"(TEXT = 'a\0b')"), std::string("a\0b", 3));
}

TEST(PythonLiterals, WhatWouldHaveToBeRunHasNoText) {
  for (const char* source : {"TEXT = 'a' + eos",
                             "TEXT = f'a{b}'",
                             "TEXT = b'a'",
                             "TEXT = Rb'a'",
                             "TEXT = str('a')",
                             "TEXT = 'a'.lower()",
                             "TEXT = 'a' % b",
                             "TEXT = ('a', 'b')",
                             "TEXT = ('a'",
                             "TEXT = other",
                             "TEXT = '\\N{BULLET}'",
                             "TEXT = '\\ud83d'",
                             "TEXT = '\\U00110000'",
                             "TEXT = '\\x4'",
                             "TEXT = 'a'\nTEXT += 'b'\n",
                             "TEXT = 'a'\nTEXT = f()\n",
                             "TEXT == 'a'",
                             "TEXT",
                             "TEXT = 'a' if x else 'b'",
                             "TEXT = x = 'a'",
                             "TEXT, y = 'a'",
                             " TEXT = 'a'",
                             "TEXT ='a' 5",
                             "x = '''\nTEXT = 1\n'''\n",
                             "# TEXT = 'a'"}) {
    const auto literals = ReadPythonLiterals(source, "a.py");
    EXPECT_TRUE(!literals || !literals->strings.contains("TEXT")) << source;
  }
}

TEST(PythonLiterals, FindsTables) {
  const PythonLiterals literals = Read(
      "T: Dict[str, str] = {\n  'low': '',\n  \"high\": (\n    'a'\n    'b'\n  ),\n  'low': "
      "'c',\n}\n"
      "EMPTY = {}\nNUMBERS = {'a': 1}\nSET = {'a', 'b'}\nMORE = {**T}\nKEYED = {'a': 'b'}\n"
      "KEYED['c'] = 'd'\n");
  ASSERT_EQ(literals.tables.size(), 2u);
  EXPECT_EQ(literals.tables.at("T"),
            (std::map<std::string, std::string>{{"low", "c"}, {"high", "ab"}}));
  EXPECT_TRUE(literals.tables.at("EMPTY").empty());
}

TEST(PythonLiterals, NamesTheLineOfWhatDoesNotEnd) {
  const std::pair<const char*, const char*> cases[] = {
      {"a = 1\nb = 'x\n", "a.py: line 2: a string does not end"},
      {"a = '''\n\n\nx", "a.py: line 1: a string does not end"},
      {"a = '\\", "a.py: line 1: a string does not end"},
      {"a = (1, [2)\n", "a.py: a bracket does not end"},
      {"'''\n'''\na = 1)\n", "a.py: line 3: a bracket closes nothing"},
      {"a = '\xff'", "a.py: it is not UTF-8"},
  };
  for (const auto& [source, message] : cases) {
    const auto literals = ReadPythonLiterals(source, "a.py");
    ASSERT_FALSE(literals) << source;
    EXPECT_EQ(literals.error().message, message);
  }
}

// Any text, written as Python's repr() does.
RC_GTEST_PROP(PythonLiterals, ReadsWhatPythonWrites, (const std::vector<uint32_t>& characters)) {
  std::string literal, text;
  for (const uint32_t any : characters) {
    const uint32_t c = any % 0x80;
    if (c == '\\' || c == '\'') literal += '\\';
    if (c < 0x20 || c == 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      literal += {'\\', 'x', kHex[c / 16], kHex[c % 16]};
    } else {
      literal += static_cast<char>(c);
    }
    text += static_cast<char>(c);
  }
  const auto literals =
      ReadPythonLiterals("X = {'k': '" + literal + "'}\nY = ('" + literal + "' 'z')\n", "a.py");
  RC_ASSERT(literals.has_value());
  RC_ASSERT(literals->tables.at("X").at("k") == text);
  RC_ASSERT(literals->strings.at("Y") == text + "z");
}

}  // namespace
}  // namespace halfbyte
