// Answers with tool calls, through the splitter, at every split.
#include "text/tool_call_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/chat_splitter.h"
#include "text/utf8.h"

namespace halfbyte {
namespace {

using Tools = ChatSplitter::Tools;

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};
struct AnswerWithCalls {
  std::string reasoning, content;
  std::vector<Call> calls;
  int64_t completed = 0;
  bool closed = false, cut = false;
  bool operator==(const AnswerWithCalls&) const = default;
};

void PrintTo(const AnswerWithCalls& answer, std::ostream* out) {
  *out << Json(answer.reasoning).dump() << " " << Json(answer.content).dump();
  for (const Call& call : answer.calls) *out << "\n  " << call.name << " " << call.arguments;
  *out << "\n  " << answer.completed << (answer.closed ? " closed" : "")
       << (answer.cut ? " cut" : "");
}

const ToolTypes& Types() {
  static const ToolTypes types(
      std::vector<ToolSchema>{Json::parse(R"({"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}}}})")});
  return types;
}

void AddTo(AnswerWithCalls& answer, const ChatSplitter::Pieces& pieces) {
  answer.reasoning += pieces.reasoning;
  answer.content += pieces.content;
  for (const ToolCallDelta& delta : pieces.tool_calls) {
    EXPECT_TRUE(IsValidUtf8(delta.arguments));
    if (!delta.name.empty()) {
      EXPECT_EQ(delta.call, std::ssize(answer.calls));
      answer.calls.push_back({delta.name, ""});
    }
    EXPECT_EQ(delta.call + 1, std::ssize(answer.calls));
    if (!answer.calls.empty()) answer.calls.back().arguments += delta.arguments;
  }
}

// What the texts of the tests call D is a mark's token, here as it is spelled.
std::string Spelled(std::string text, std::string_view dsml = "｜DSML｜") {
  for (const std::string_view opener : {"<D ", "</D "}) {
    for (size_t at; (at = text.find(opener)) != std::string::npos;) {
      text.replace(at, opener.size(), std::string(opener, 0, opener.size() - 2).append(dsml));
    }
  }
  return text;
}

// Cut at the given places.
AnswerWithCalls ParseCalls(const std::string& text, std::vector<size_t> cuts, bool thinking = false,
                           Tools tools = Tools::kCalled) {
  ChatSplitter splitter(thinking, tools, Types());
  AnswerWithCalls answer;
  cuts.push_back(text.size());
  size_t at = 0;
  for (const size_t cut : cuts) {
    AddTo(answer, splitter.Push(std::string_view(text).substr(at, cut - at)));
    EXPECT_LE(splitter.held(), 13);
    at = cut;
  }
  answer.closed = splitter.calls_closed();
  AddTo(answer, splitter.Flush());
  answer.completed = splitter.completed_calls();
  answer.cut = splitter.call_is_cut();
  return answer;
}

// Sanitizers make the tests some thirty times slower: they see fewer splits.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRandomAnswers = 3'000;
constexpr size_t kSecondCutStep = 37;
#else
constexpr int kRandomAnswers = 100'000;
constexpr size_t kSecondCutStep = 1;
#endif

// The same at every split point and pair of them.
AnswerWithCalls ParseCalls(const std::string& written, bool thinking = false) {
  const std::string text = Spelled(written);
  const AnswerWithCalls whole = ParseCalls(text, {}, thinking);
  for (size_t a = 0; a <= text.size(); ++a) {
    for (size_t b = a; b <= text.size(); b += kSecondCutStep) {
      const AnswerWithCalls cut = ParseCalls(text, {a, b}, thinking);
      EXPECT_EQ(cut, whole) << written << " cut at " << a << " and " << b;
      if (cut != whole) return whole;
    }
  }
  return whole;
}

Call F(std::string arguments) { return {"f", std::move(arguments)}; }

const std::string kBegin = "<D tool_calls>\n<D invoke name=\"f\">\n";
const std::string kEnd = "\n</D invoke>\n</D tool_calls>";
std::string Text(const std::string& name, const std::string& value) {
  return "<D parameter name=\"" + name + "\" string=\"true\">" + value + "</D parameter>";
}
std::string Value(const std::string& name, const std::string& value) {
  return "<D parameter name=\"" + name + "\" string=\"false\">" + value + "</D parameter>";
}

TEST(ToolCalls, AnswersBecomeCalls) {
  EXPECT_EQ(ParseCalls("so\n\n" + kBegin + Text("x", "a b") + "\n" + Value("y", "[1, 2]") + kEnd),
            (AnswerWithCalls{"", "so", {F(R"({"x": "a b", "y": [1, 2]})")}, 1, true}));
  EXPECT_EQ(ParseCalls(kBegin + kEnd), (AnswerWithCalls{"", "", {F("{}")}, 1, true}));
  EXPECT_EQ(ParseCalls("<D tool_calls><D invoke name=\"f\"></D invoke><D invoke name=\"g.h:i-1\">" +
                       Text("x", "1") + "</D invoke></D tool_calls>"),
            (AnswerWithCalls{"", "", {F("{}"), {"g.h:i-1", R"({"x": "1"})"}}, 2, true}));
}

TEST(ToolCalls, TextIsEscapedAndNeverSplitInsideACharacter) {
  EXPECT_EQ(ParseCalls(kBegin + Text("é", "\"\\\n\t\x01é😀<") + kEnd).calls[0],
            F("{\"é\": \"\\\"\\\\\\n\\t\\u0001é😀<\"}"));
  EXPECT_EQ(ParseCalls(kBegin + Text("x", "a 2>&1 </ <｜DSM") + kEnd).calls[0],
            F("{\"x\": \"a 2>&1 </ <｜DSM\"}"));
  EXPECT_EQ(ParseCalls(kBegin + Text("x", "\xff\xe2\x82") + kEnd).calls[0],
            F("{\"x\": \"\xEF\xBF\xBD\xEF\xBF\xBD\"}"));
  EXPECT_EQ(ParseCalls(kBegin + Text("x", "\n\n\na\n") + kEnd).calls[0],
            F(R"({"x": "\n\n\na\n"})"));
}

TEST(ToolCalls, ValuesThatAreNoJsonAreStrings) {
  EXPECT_EQ(ParseCalls(kBegin + Value("x", "{\"a\": null}") + kEnd).calls[0],
            F(R"({"x": {"a": null}})"));
  EXPECT_EQ(ParseCalls(kBegin + Value("x", "yes, 5") + kEnd).calls[0], F(R"({"x": "yes, 5"})"));
  EXPECT_EQ(ParseCalls(kBegin + Value("x", "NaN") + kEnd).calls[0], F(R"({"x": "NaN"})"));
}

TEST(ToolCalls, TheSchemaSaysWhatTheModelDoesNot) {
  const auto untyped = [](const std::string& name, const std::string& value) {
    return ParseCalls(kBegin + "<D parameter name=\"" + name + "\">" + value + "</D parameter>" +
                      kEnd)
        .calls[0];
  };
  EXPECT_EQ(untyped("s", "5"), F(R"({"s": "5"})"));
  EXPECT_EQ(untyped("i", "5"), F(R"({"i": 5})"));
  EXPECT_EQ(untyped("other", "[5]"), F(R"({"other": [5]})"));
  EXPECT_EQ(untyped("other", "a"), F(R"({"other": "a"})"));
}

// Everything that models are known to leave out or write twice (server.md §5.2).
TEST(ToolCalls, MissingAndDoubledTagsAreUnderstood) {
  const AnswerWithCalls whole = {"", "", {F(R"({"x": "a"})")}, 1, true};
  const std::string x = Text("x", "a");
  EXPECT_EQ(ParseCalls(kBegin + x + "</D parameter></D parameter>" + kEnd), whole);
  EXPECT_EQ(
      ParseCalls(kBegin + "<D parameter name=\"x\" string=\"true\">a</D invoke></D tool_calls>"),
      whole);
  EXPECT_EQ(ParseCalls(kBegin + x + "</D tool_calls>"), whole);
  EXPECT_EQ(ParseCalls("<D invoke name=\"f\">" + x + "</D invoke>"),
            (AnswerWithCalls{"", "", {F(R"({"x": "a"})")}, 1}));
  EXPECT_EQ(ParseCalls(kBegin + x + "<D invoke name=\"g\">" + kEnd),
            (AnswerWithCalls{"", "", {F(R"({"x": "a"})"), {"g", "{}"}}, 2, true}));
  EXPECT_EQ(ParseCalls(kBegin + x + Text("x", "b") + kEnd), whole);        // a repeated name
  EXPECT_EQ(ParseCalls("<D tool_calls>" + x + kBegin + x + kEnd), whole);  // without a call
  EXPECT_EQ(
      ParseCalls("<D tool_calls><D invoke name=\"a b\">" + x + "</D invoke>" + kBegin + x + kEnd),
      whole);  // a name that is none
  EXPECT_EQ(ParseCalls("an answer</D invoke></D tool_calls>").content, "an answer");
  EXPECT_EQ(ParseCalls("why" + kBegin + x + kEnd, /*thinking=*/true),
            (AnswerWithCalls{"why", "", {F(R"({"x": "a"})")}, 1, true}));
}

TEST(ToolCalls, ACallThatIsCutStaysCut) {
  const std::string x = "<D parameter name=\"x\" string=\"true\">rm -rf /tmp";
  EXPECT_EQ(ParseCalls(kBegin + x),
            (AnswerWithCalls{"", "", {F(R"({"x": "rm -rf /tmp)")}, 0, false, true}));
  EXPECT_EQ(ParseCalls(kBegin + x + "</D para"),
            (AnswerWithCalls{"", "", {F(R"({"x": "rm -rf /tmp)")}, 0, false, true}));
  EXPECT_EQ(ParseCalls(kBegin + x + "<D rubbish>/a" + kEnd),
            (AnswerWithCalls{"", "", {F(R"({"x": "rm -rf /tmp)")}, 0, true, false}));
  // Between values nothing is missing but braces.
  EXPECT_EQ(ParseCalls(kBegin + x + "</D parameter>\n</D inv"),
            (AnswerWithCalls{"", "", {F(R"({"x": "rm -rf /tmp"})")}, 1}));
  EXPECT_EQ(ParseCalls(kBegin), (AnswerWithCalls{"", "", {F("{}")}, 1}));
}

TEST(ToolCalls, WithoutToolsOrWithNoneThereAreNoCalls) {
  const std::string text = "so" + Spelled(kBegin + Text("x", "a") + kEnd) + "!";
  EXPECT_EQ(ParseCalls(text, {}, false, Tools::kNone), (AnswerWithCalls{"", text}));
  EXPECT_EQ(ParseCalls(text, {}, false, Tools::kIgnored), (AnswerWithCalls{"", "so!"}));
}

TEST(ToolCalls, BarsMayBeAscii) {
  EXPECT_EQ(ParseCalls(Spelled(kBegin + Text("x", "a") + kEnd, "|DSML|"), {}),
            (AnswerWithCalls{"", "", {F(R"({"x": "a"})")}, 1, true}));
}

// A million random splits of random answers (fewer under sanitizers): no byte of markup anywhere,
// and what completes is JSON.
TEST(ToolCalls, NothingOfTheMarkupLeaks) {
  const std::string parts[] = {"<D tool_calls>",
                               "</D tool_calls>",
                               "<D invoke name=\"f\">",
                               "<D invoke name=\"\">",
                               "</D invoke>",
                               "<D parameter name=\"s\">",
                               "<D parameter name=\"x\" string=\"true\">",
                               "<D parameter name=\"y\" string=\"false\">",
                               "</D parameter>",
                               "<D invoke",
                               "</D ",
                               "<D ",
                               "<",
                               "</",
                               ">",
                               "\n",
                               "\n\n",
                               "{\"a\": [1]}",
                               "\"",
                               "\\",
                               "é",
                               "\xe2\x82",
                               "5",
                               "a b",
                               " ",
                               "</think>",
                               "string=\"true\">"};
  std::mt19937 random(5);
  int64_t completed = 0;
  for (int round = 0; round < kRandomAnswers; ++round) {
    std::string text;
    for (size_t i = random() % 14; i > 0; --i) text += parts[random() % std::size(parts)];
    text = Spelled(text, random() % 4 == 0 ? "|DSML|" : "｜DSML｜");
    const bool thinking = random() % 4 == 0;
    const AnswerWithCalls whole = ParseCalls(text, {}, thinking);
    for (int split = 0; split < 10; ++split) {
      std::vector<size_t> cuts(random() % 6);
      for (size_t& cut : cuts) cut = random() % (text.size() + 1);
      std::ranges::sort(cuts);
      ASSERT_EQ(ParseCalls(text, cuts, thinking), whole) << text;
    }
    std::vector<std::string> visible = {whole.reasoning, whole.content};
    for (const Call& call : whole.calls) visible.push_back(call.arguments);
    for (const std::string& each : visible) {
      for (const std::string_view mark : {"<｜DSML｜", "</｜DSML｜", "<|DSML|", "</|DSML|"}) {
        ASSERT_EQ(each.find(mark), std::string::npos) << text;
      }
    }
    int64_t objects = 0;
    for (const Call& call : whole.calls) {
      objects += Json::accept(call.arguments) ? 1 : 0;
    }
    ASSERT_EQ(objects, whole.completed) << text;
    completed += whole.completed;
  }
  EXPECT_GT(completed, kRandomAnswers / 10);
}

}  // namespace
}  // namespace halfbyte
