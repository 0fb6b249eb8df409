#include "text/section_texts.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "text/chat_splitter.h"

namespace halfbyte {
namespace {

using Places = std::map<std::string_view, SectionPiece>;

tl::unexpected<Error> Missing(std::string_view message) {
  return MakeError("prompt_data_missing: {}", message);
}

// A Python format string with named places: "{name}", and "{{" and "}}" for braces.
Result<std::vector<SectionPiece>> Fill(std::string_view text, const Places& places) {
  std::vector<SectionPiece> pieces(1);
  while (!text.empty()) {
    const size_t brace = std::min(text.find_first_of("{}"), text.size());
    pieces.back().text += text.substr(0, brace);
    text.remove_prefix(brace);
    if (text.empty()) break;
    if (text.starts_with("{{") || text.starts_with("}}")) {
      pieces.back().text += text.front();
      text.remove_prefix(2);
      continue;
    }
    const size_t end = text.find('}');
    const std::string_view name = text.substr(1, end == text.npos ? end : end - 1);
    const auto place = places.find(name);
    if (text.front() == '}' || end == text.npos || place == places.end()) {
      return Missing(fmt::format(
          "the model's wording has a place {} that is not known here; put section_texts into "
          "halfbyte.json",
          text.substr(0, std::min<size_t>(end, 40))));
    }
    text.remove_prefix(end + 1);
    if (place->second.ours) {
      pieces.back().text += place->second.text;
    } else {
      pieces.push_back(place->second);
      pieces.push_back({});
    }
  }
  return pieces;
}

void AppendPythonJson(const Json& value, std::string& out) {
  const bool object = value.is_object();
  if (!object && !value.is_array()) {
    out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  out += object ? '{' : '[';
  bool first = true;
  for (const auto& [key, element] : value.items()) {
    if (!std::exchange(first, false)) out += ", ";
    if (object) {
      AppendPythonJson(Json(key), out);
      out += ": ";
    }
    AppendPythonJson(element, out);
  }
  out += object ? '}' : ']';
}

}  // namespace

std::string PythonJson(const Json& value) {
  std::string out;
  AppendPythonJson(value, out);
  return out;
}

Result<std::vector<SectionPiece>> ToolsSection(const SectionTexts& texts,
                                               const std::vector<ToolSchema>& tools) {
  if (!texts.tools) {
    return Missing(
        "tools need wording that the model directory does not bring; put the release's "
        "encoding/encoding_dsv4.py there, or section_texts.tools into halfbyte.json");
  }
  std::string schemas;
  for (const ToolSchema& tool : tools) {
    if (!schemas.empty()) schemas += '\n';
    schemas += PythonJson(tool);
  }
  return Fill(*texts.tools, {{"tool_schemas", {std::move(schemas), false}},
                             {"dsml_token", {std::string(kDsml[0])}},
                             {"thinking_start_token", {std::string(kThink)}},
                             {"thinking_end_token", {std::string(kThinkEnd)}}});
}

Result<std::vector<SectionPiece>> ResponseFormatSection(const SectionTexts& texts,
                                                        const Json& schema) {
  if (!texts.response_format) {
    return Missing(
        "response_format needs wording that the model directory does not bring; put the release's "
        "encoding/encoding_dsv4.py there, or section_texts.response_format into halfbyte.json");
  }
  return Fill(*texts.response_format, {{"schema", {PythonJson(schema), false}}});
}

}  // namespace halfbyte
