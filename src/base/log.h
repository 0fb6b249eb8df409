// Log lines go to stderr, so that stdout stays what a command was asked to print.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <string>

namespace halfbyte {

// Call once from main. Level: HALFBYTE_LOG = trace|debug|info|warning|error, default warning.
void InitLogging();

// For a program that runs for long: lines with date and time, as text, or each as one object
// {"time", "level", "message"}. The environment variable NO_COLOR keeps colours away. From now on
// nobody waits for stderr (base/line_writer.h): lines that cannot be written are dropped, counted,
// and told of when lines can be written again.
void InitServiceLogging(spdlog::level::level_enum level, bool json);

// Lines that a service's log has lost so far.
int64_t DroppedLogLines();
// A line on stderr in the order of the log, without date and level. After InitServiceLogging.
void WriteToLog(std::string line);
// Before a service ends: gives its last lines a moment to be written, no more.
void FlushServiceLog();

}  // namespace halfbyte
