// The sections that tools and response formats add to the instructions of a chat (server.md §3.1,
// §3.3). Like the wording of efforts they are data of the model directory, never in our source:
// Python format strings with the places {tool_schemas}, {schema}, {dsml_token},
// {thinking_start_token} and {thinking_end_token}.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace halfbyte {

// As a client gives it: name, description, parameters. Order counts: the model reads it.
using ToolSchema = Json;

struct SectionTexts {
  std::optional<std::string> tools;
  std::optional<std::string> response_format;
};

// A piece of a filled section: wording, in which control tokens are recognised, or what a client
// says, in which they are not.
struct SectionPiece {
  std::string text;
  bool ours = true;
};

// The section of these tools; that of a schema that answers must follow. Errors, starting with
// "prompt_data_missing: ": the model brings no such wording, or it has a place of another name.
Result<std::vector<SectionPiece>> ToolsSection(const SectionTexts& texts,
                                               const std::vector<ToolSchema>& tools);
Result<std::vector<SectionPiece>> ResponseFormatSection(const SectionTexts& texts,
                                                        const Json& schema);

// JSON as Python's json module writes it with ensure_ascii off: what the model was trained on.
std::string PythonJson(const Json& value);

}  // namespace halfbyte
