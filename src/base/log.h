// Log lines go to stderr, so that stdout stays what a command was asked to print.
#pragma once

#include <spdlog/spdlog.h>

namespace halfbyte {

// Call once from main. Level: HALFBYTE_LOG = trace|debug|info|warning|error, default warning.
void InitLogging();

// For a program that runs for long: lines with date and time, as text, or each as one object
// {"time", "level", "message"}. The environment variable NO_COLOR keeps colours away.
void InitServiceLogging(spdlog::level::level_enum level, bool json);

}  // namespace halfbyte
