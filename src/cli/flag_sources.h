// Flags that may also come from the environment and from a TOML file (server.md §4). What counts:
// the command line, then HALFBYTE_MAX_MODEL_LEN (for --max-model-len), then `max-model-len` or
// `max_model_len` in the file, then the default.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>

#include "base/json.h"
#include "base/result.h"

namespace halfbyte {

// Fills in what the command line has left open, in the command's callback. A flag with several
// values is a list in the file and one value in the environment.
// Errors name the variable, or file and key: a value that the flag does not take, a key that no
// flag has, a file that cannot be read.
Status FillFlags(CLI::App& command, const std::optional<std::filesystem::path>& file);

// All flags with their values: {"port": 8000, "uds": null, ...}. Those named in `secret` show
// whether there is a value, not which.
Json FlagValues(const CLI::App& command, const std::vector<std::string>& secret);

}  // namespace halfbyte
