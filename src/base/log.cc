#include "base/log.h"

#include <spdlog/cfg/helpers.h>
#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "base/json.h"

namespace halfbyte {
namespace {

constexpr char kTime[] = "%Y-%m-%dT%H:%M:%S.%e%z";

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    spdlog::memory_buf_t time;
    time_.format(line, time);
    const auto level = spdlog::level::to_string_view(line.level);
    const Json json{{"time", std::string(time.data(), time.size())},
                    {"level", std::string(level.data(), level.size())},
                    {"message", std::string(line.payload.data(), line.payload.size())}};
    const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }

 private:
  spdlog::pattern_formatter time_{kTime, spdlog::pattern_time_type::local, ""};
};

}  // namespace

void InitLogging() {
  spdlog::set_default_logger(spdlog::stderr_color_mt("halfbyte"));
  spdlog::set_pattern("%^%l%$: %v");
  spdlog::set_level(spdlog::level::warn);
  if (const char* level = std::getenv("HALFBYTE_LOG")) spdlog::cfg::helpers::load_levels(level);
}

void InitServiceLogging(spdlog::level::level_enum level, bool json) {
  const bool colourless = std::getenv("NO_COLOR") != nullptr;
  const auto mode = colourless ? spdlog::color_mode::never : spdlog::color_mode::automatic;
  const auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(mode);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("halfbyte", sink));
  spdlog::set_pattern(std::string(kTime) + " %^%l%$ %v");
  if (json) spdlog::set_formatter(std::make_unique<JsonFormatter>());
  spdlog::set_level(level);
}

}  // namespace halfbyte
