// Tool calls as the model writes them (server.md §3.4), tag by tag, into the pieces of a stream:
//
//   <D tool_calls> <D invoke name="f"> <D parameter name="x" string="true">a b</D parameter> ...
//
// becomes a call of f with the arguments {"x": "a b"}, which grow as the bytes come. What the model
// leaves out is closed by what follows; what it begins wrongly is skipped. A call that is cut
// inside a value stays cut: no quote or brace is invented, so that it cannot look runnable.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/section_texts.h"
#include "text/utf8_stream.h"

namespace halfbyte {

// The next part of a call. The first one has its name, and only that one.
struct ToolCallDelta {
  int32_t call = 0;  // 0 for the first of an answer
  std::string name;
  std::string
      arguments;  // valid UTF-8; those of all parts joined are a JSON object if it completes

  bool operator==(const ToolCallDelta&) const = default;
};

// Which parameters are strings, for values of which the model does not say it.
class ToolTypes {
 public:
  ToolTypes() = default;
  explicit ToolTypes(const std::vector<ToolSchema>& tools);
  bool IsString(const std::string& tool, const std::string& parameter) const {
    return strings_.contains({tool, parameter});
  }

 private:
  std::set<std::pair<std::string, std::string>> strings_;
};

class ToolCallParser {
 public:
  // `types` must outlive the parser.
  explicit ToolCallParser(const ToolTypes& types) : types_(types) {}

  using Deltas = std::vector<ToolCallDelta>;
  // A complete tag: its name (tool_calls, invoke, parameter) and the attributes behind it.
  void Tag(bool closing, std::string_view name, std::string_view attributes, Deltas& deltas);
  // A mark that no tag follows: of a value it leaves nothing that can be trusted.
  void Malformed();
  // Between tags.
  void Bytes(std::string_view bytes, Deltas& deltas);
  // The end of the answer: completes a call whose values are all closed.
  void End(Deltas& deltas);

  int64_t completed() const { return completed_; }                // calls
  bool closed() const { return closed_; }                         // </D tool_calls> was there
  bool cut() const { return value_ != Value::kNone || broken_; }  // inside a value

 private:
  enum class Value {
    kNone,
    kText,     // streamed as a JSON string
    kJson,     // kept: as it is if it is JSON, else as a string
    kUntyped,  // kept: the tool's schema says what it is
    kSkipped,
  };

  void OpenCall(std::string_view attributes, Deltas& deltas);
  void CloseCall(Deltas& deltas);
  void OpenValue(std::string_view attributes, Deltas& deltas);
  void CloseValue(Deltas& deltas);
  void Append(std::string_view arguments, Deltas& deltas) const;

  const ToolTypes& types_;
  int32_t calls_ = 0;
  bool open_ = false;    // a call is
  bool broken_ = false;  // and a value of it was cut by a malformed tag
  bool closed_ = false;
  int64_t completed_ = 0;
  std::string tool_, parameter_;
  std::set<std::string, std::less<>> names_;  // of the open call's parameters
  Value value_ = Value::kNone;
  std::string kept_;
  Utf8Stream utf8_;
};

}  // namespace halfbyte
