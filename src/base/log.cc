#include "base/log.h"

#include <spdlog/cfg/helpers.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>

namespace halfbyte {

void InitLogging() {
  spdlog::set_default_logger(spdlog::stderr_color_mt("halfbyte"));
  spdlog::set_pattern("%^%l%$: %v");
  spdlog::set_level(spdlog::level::warn);
  if (const char* level = std::getenv("HALFBYTE_LOG")) spdlog::cfg::helpers::load_levels(level);
}

}  // namespace halfbyte
