#include "text/chat_doctor.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = fs::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4";

class ChatDoctor : public testing::Test {
 protected:
  ChatDoctor() {
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "encoding/tests");
    fs::copy_file(kModel / "tokenizer.json", dir_ / "tokenizer.json");
  }
  ~ChatDoctor() override { fs::remove_all(dir_); }

  // What becomes of one golden case: "differs: ...".
  std::string Replayed(const std::string& input, const std::string& output) {
    EXPECT_TRUE(WriteFileAtomically(dir_ / "encoding/tests/test_input_7.json", input));
    EXPECT_TRUE(WriteFileAtomically(dir_ / "encoding/tests/test_output_7.txt", output));
    const auto diagnosis = DiagnoseChat(dir_);
    if (!diagnosis) return "error: " + diagnosis.error().message;
    const std::string text = DiagnosisText(*diagnosis);
    EXPECT_EQ(diagnosis->healthy(), text.find(": differs") == std::string::npos);
    constexpr std::string_view kName = "test_input_7.json: ";
    const size_t at = text.find(kName);
    return at == text.npos ? text : text.substr(at + kName.size());
  }

  const fs::path dir_ = fs::path(testing::TempDir()) / "halfbyte_chat_doctor";
};

constexpr char kTalk[] = R"([
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "One?"},
  {"role": "assistant", "reasoning": "Count.", "content": "1", "mask": 1},
  {"role": "developer", "content": "Two?"},
  {"role": "assistant", "reasoning_content": "Count on.", "content": "2"}])";

TEST_F(ChatDoctor, ReplaysAGoldenCaseByteForByte) {
  const std::string begin =
      "<｜begin▁of▁sentence｜>Be brief.<｜User｜>One?<｜Assistant｜></think>1"
      "<｜end▁of▁sentence｜><｜User｜>Two?<｜Assistant｜>";
  const std::string end = "2<｜end▁of▁sentence｜>";
  EXPECT_EQ(Replayed(kTalk, begin + "<think>Count on.</think>" + end), "equal\n");
  EXPECT_EQ(Replayed(kTalk, begin + "</think>" + end), "equal\n");
  const std::string differs = Replayed(kTalk, begin + "<think>Count in.</think>" + end);
  EXPECT_NE(differs.find("differs: from byte"), std::string::npos) << differs;
  EXPECT_NE(differs.find("\"on.</think>2"), std::string::npos) << differs;
  EXPECT_EQ(Replayed(kTalk, begin).rfind("differs: from byte", 0), 0u);
}

TEST_F(ChatDoctor, ACaseThatEndsWithAUserIsAnswered) {
  EXPECT_EQ(Replayed(R"({"messages": [{"role": "user", "content": "a"}]})",
                     "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜><think>"),
            "equal\n");
  EXPECT_EQ(Replayed(R"([{"role": "system", "content": "a"}])", "<｜begin▁of▁sentence｜>a"),
            "equal\n");
}

TEST_F(ChatDoctor, ReplaysToolsWithTheirCallsAndResults) {
  ASSERT_TRUE(
      WriteFileAtomically(dir_ / "encoding/encoding_dsv4.py",
                          "TOOLS_TEMPLATE = 'Call <{dsml_token}tool_calls>: {tool_schemas}.'\n"));
  const std::string input = R"({
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "é"}}}],
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "One?"},
      {"role": "assistant", "reasoning_content": "Look.", "tool_calls": [
        {"id": "c1", "function": {"name": "f", "arguments": "{\"x\": \"a b\", \"y\": [1, 2]}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "ok"}]})";
  EXPECT_EQ(
      Replayed(input,
               "<｜begin▁of▁sentence｜>Be brief.\n\nCall <｜DSML｜tool_calls>: {\"name\": \"f\", "
               "\"parameters\": {\"b\": 1, \"a\": \"é\"}}.<｜User｜>One?<｜Assistant｜><think>Look."
               "</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
               "<｜DSML｜parameter name=\"x\" string=\"true\">a b</｜DSML｜parameter>\n"
               "<｜DSML｜parameter name=\"y\" string=\"false\">[1, 2]</｜DSML｜parameter>\n"
               "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
               "<｜User｜><tool_result>ok</tool_result><｜Assistant｜><think>"),
      "equal\n");
}

TEST_F(ChatDoctor, SaysWhatItDoesNotReplay) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([{"role": "latest_reminder", "content": "a"}])",
       "not replayed: it has the role latest_reminder\n"},
      {R"([{"role": "user", "content": "a", "response_format": {}}])",
       "not replayed: it has response_format\n"},
      {R"([{"role": "user", "content": "a", "task": "title"}])", "not replayed: it has task\n"},
  };
  for (const auto& [input, said] : cases) EXPECT_EQ(Replayed(input, "x"), said);
}

TEST_F(ChatDoctor, NamesACaseThatCannotBeRead) {
  for (const char* input : {"{", "5", R"({"messages": 5})", "[5]", R"([{"content": "a"}])",
                            R"([{"role": "user", "content": 5}])", "[]"}) {
    const std::string said = Replayed(input, "x");
    EXPECT_EQ(said.rfind("error: ", 0), 0u) << input << said;
    EXPECT_NE(said.find("test_input_7.json"), std::string::npos) << said;
  }
  fs::remove(dir_ / "encoding/tests/test_output_7.txt");
  const auto diagnosis = DiagnoseChat(dir_);
  ASSERT_FALSE(diagnosis);
  EXPECT_NE(diagnosis.error().message.find("test_output_7.txt"), std::string::npos);
}

TEST_F(ChatDoctor, TellsWhereTheWordingIsFrom) {
  EXPECT_EQ(DiagnosisText(*DiagnoseChat(dir_)),
            "wording: preview profile, no file brings wording\n"
            "sections: tools no, response format no\n"
            "golden cases: none lie beside an encoder\n");
  ASSERT_TRUE(WriteFileAtomically(dir_ / "encoding/encoding_dsv4.py",
                                  "REASONING_EFFORT_PROMPTS = {'low': '', 'high': 'a', "
                                  "'max': 'b'}\n"));
  const Json json = DiagnosisJson(*DiagnoseChat(dir_));
  EXPECT_EQ(json["wording"]["profile"], "official");
  EXPECT_EQ(json["wording"]["source"], (dir_ / "encoding/encoding_dsv4.py").string());
  EXPECT_EQ(json["wording"]["sha256"].get<std::string>().size(), 64u);
}

}  // namespace
}  // namespace halfbyte
