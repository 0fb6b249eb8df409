// Every field that clients of this interface and of those like it send, and what it gets here: a
// field that constrains or shapes the answer is honoured or refused by name, whoever's dialect it
// is. Data: field_table.cc makes rules of it, docs/fields.md shows it, and a test compares them.
#pragma once

#include <span>
#include <string_view>

namespace halfbyte {

enum class FieldGets {
  kHonoured,  // where it is a field of ours (field_table.cc); on other routes as kRefused
  kAlias,     // another name of `same_as`, with the same meaning
  kRefused,   // unless it is null or one of `neutral`, which ask for nothing
  kAccepted,  // asks nothing of the model; has no effect
  kHarmless,  // no answer depends on it here: dropped, and named in x-halfbyte-ignored
};

struct DialectField {
  std::string_view name;
  std::string_view dialects;  // who defines it, as below
  FieldGets gets;
  std::string_view neutral = "";  // a list in JSON
  std::string_view same_as = "";
};

// Dialects and what they were read from:
//   openai       openai 3.57.0 (PyPI): chat and completions; responses where it says so
//   anthropic    anthropic 2.14.0 (PyPI): messages
//   vllm         vllm-project/vllm 002032ee2: chat_completion/ and completion/protocol.py; its
//                guided_* and logits_processors come from releases before that
//   sglang       sgl-project/sglang 004c82e07: entrypoints/openai/protocol.py, and its own generate
//   llama.cpp    ggml-org/llama.cpp 00efb3e18: tools/server/server-task.cpp
//   ollama       ollama/ollama fb3076099: api/types.go, openai/openai.go
//   others       names of TGI, Mistral, OpenRouter and DeepSeek that are sent to any server
std::span<const DialectField> DialectFields();

}  // namespace halfbyte
