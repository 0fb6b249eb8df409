// What `halfbyte doctor` tells of a model directory: whether chats get the prompts that the model
// was trained with (server.md §3.1).
//
// Golden cases lie beside a checkpoint's encoder: encoding/tests/test_input_N.json, a conversation,
// and test_output_N.txt, its prompt. They are rendered by chat.h and compared byte for byte.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/chat_wording.h"

namespace halfbyte {

struct ChatGolden {
  enum class Outcome { kEqual, kDiffers, kNotReplayed };
  std::string name;  // "test_input_2.json"
  Outcome outcome = Outcome::kEqual;
  std::string detail;  // kDiffers: where; kNotReplayed: what it has that is not built here
};

struct ChatDiagnosis {
  ChatWording wording;
  std::vector<ChatGolden> goldens;  // by name

  bool healthy() const;  // none differs
};

// Errors: a tokenizer without the control tokens of chats; a halfbyte.json, encoder file or golden
// case that cannot be read.
Result<ChatDiagnosis> DiagnoseChat(const std::filesystem::path& model_dir);

std::string DiagnosisText(const ChatDiagnosis& diagnosis);  // for people
Json DiagnosisJson(const ChatDiagnosis& diagnosis);

}  // namespace halfbyte
