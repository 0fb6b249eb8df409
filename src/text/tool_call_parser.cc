#include "text/tool_call_parser.h"

#include <algorithm>
#include <optional>

namespace halfbyte {
namespace {

constexpr size_t kMostNameBytes = 128;

// NAME="...": what stands in the quotes.
std::optional<std::string_view> Attribute(std::string_view attributes, std::string_view name) {
  const std::string opening = " " + std::string(name) + "=\"";
  const size_t at = attributes.find(opening);
  if (at == attributes.npos) return std::nullopt;
  attributes.remove_prefix(at + opening.size());
  const size_t end = attributes.find('"');
  if (end == attributes.npos) return std::nullopt;
  return attributes.substr(0, end);
}

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.' || c == ':';
  });
}

// Valid UTF-8 as it stands inside a JSON string.
std::string Escaped(std::string_view text) {
  std::string quoted = Json(text).dump();
  return quoted.substr(1, quoted.size() - 2);
}

std::string Quoted(std::string_view bytes) { return Json(ToValidUtf8(bytes)).dump(); }

}  // namespace

ToolTypes::ToolTypes(const std::vector<ToolSchema>& tools) {
  for (const ToolSchema& tool : tools) {
    const Json properties =
        tool.value(Json::json_pointer("/parameters/properties"), Json::object());
    for (const auto& [name, schema] : properties.items()) {
      if (schema.is_object() && schema.value("type", Json()) == "string") {
        strings_.insert({tool.value("name", ""), name});
      }
    }
  }
}

void ToolCallParser::Append(std::string_view arguments, Deltas& deltas) const {
  const int32_t call = calls_ - 1;
  if (deltas.empty() || deltas.back().call != call) deltas.push_back({.call = call});
  deltas.back().arguments += arguments;
}

void ToolCallParser::Tag(bool closing, std::string_view name, std::string_view attributes,
                         Deltas& deltas) {
  CloseValue(deltas);
  if (name == "parameter") {
    if (!closing) OpenValue(attributes, deltas);
    return;
  }
  CloseCall(deltas);
  if (name == "invoke" && !closing) OpenCall(attributes, deltas);
  if (name == "tool_calls" && closing) closed_ = true;
}

void ToolCallParser::Malformed() {
  broken_ = broken_ || (open_ && value_ != Value::kNone && value_ != Value::kSkipped);
  value_ = Value::kNone;
}

void ToolCallParser::OpenCall(std::string_view attributes, Deltas& deltas) {
  const auto name = Attribute(attributes, "name");
  if (!name || !IsToolName(*name)) return;
  open_ = true;
  tool_ = *name;
  names_.clear();
  deltas.push_back({.call = calls_++, .name = tool_});
}

void ToolCallParser::CloseCall(Deltas& deltas) {
  if (open_ && !broken_) {
    Append(names_.empty() ? "{}" : "}", deltas);
    ++completed_;
  }
  open_ = broken_ = false;
}

void ToolCallParser::OpenValue(std::string_view attributes, Deltas& deltas) {
  const auto name = Attribute(attributes, "name");
  value_ = Value::kSkipped;
  if (!open_ || broken_ || !name) return;
  parameter_ = ToValidUtf8(*name);
  if (!names_.insert(parameter_).second) return;
  Append(names_.size() == 1 ? "{" : ", ", deltas);
  Append(Quoted(parameter_) + ": ", deltas);
  const auto string = Attribute(attributes, "string");
  value_ = string == "true" ? Value::kText : string == "false" ? Value::kJson : Value::kUntyped;
  if (value_ == Value::kText) Append("\"", deltas);
  kept_.clear();
}

void ToolCallParser::Bytes(std::string_view bytes, Deltas& deltas) {
  if (value_ == Value::kText) {
    const std::string text = utf8_.Push(bytes);
    if (!text.empty()) Append(Escaped(text), deltas);
  } else if (value_ == Value::kJson || value_ == Value::kUntyped) {
    kept_ += bytes;
  }
}

void ToolCallParser::CloseValue(Deltas& deltas) {
  if (value_ == Value::kText) {
    Append(Escaped(utf8_.Flush()) + '"', deltas);
  } else if (value_ == Value::kJson || value_ == Value::kUntyped) {
    const bool string = value_ == Value::kUntyped && types_.IsString(tool_, parameter_);
    Append(!string && Json::accept(kept_) ? kept_ : Quoted(kept_), deltas);
  }
  value_ = Value::kNone;
}

void ToolCallParser::End(Deltas& deltas) {
  if (value_ == Value::kNone) CloseCall(deltas);
}

}  // namespace halfbyte
