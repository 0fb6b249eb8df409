// Log lines go to stderr, so that stdout stays what a command was asked to print.
#pragma once

#include <spdlog/spdlog.h>

namespace halfbyte {

// Call once from main. Level: HALFBYTE_LOG = trace|debug|info|warning|error, default warning.
void InitLogging();

}  // namespace halfbyte
