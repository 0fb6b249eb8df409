// Wording from the checkpoint's own encoder, encoding/encoding_dsv4.py (server.md §3.1, §3.2). It
// is read as text (python_literals.h): no code of a model directory ever runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "text/chat_wording.h"

namespace halfbyte {

inline constexpr std::string_view kEncoderFile = "encoding/encoding_dsv4.py";

// What an effort adds by that file: a table REASONING_EFFORT_PROMPTS of low, high and max is the
// official profile, a text REASONING_EFFORT_MAX the preview's; neither: no texts. The sections are
// its TOOLS_TEMPLATE and response_format_template. Nothing if there is no such file. `profile` is
// what halfbyte.json says, which counts more; the preview's text for max is the official one for
// high. Errors: larger than 1 MiB, unreadable, those of ReadPythonLiterals, a table of other
// efforts.
Result<std::optional<ChatWording>> ReadEncoderFile(const std::filesystem::path& model_dir,
                                                   std::optional<EffortProfile> profile);

}  // namespace halfbyte
