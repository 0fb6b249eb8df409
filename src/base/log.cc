#include "base/log.h"

#include <spdlog/cfg/helpers.h>
#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/line_writer.h"

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

constexpr std::chrono::milliseconds kLastLines{1000};  // to be written at the end

// Of stderr. Never destroyed: its thread may be stuck.
LineWriter& ServiceLog() {
  static auto* const writer = new LineWriter(STDERR_FILENO);
  return *writer;
}

std::string_view ColourOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::info:
      return "\033[32m";
    case spdlog::level::warn:
      return "\033[33m\033[1m";
    case spdlog::level::err:
      return "\033[31m\033[1m";
    default:
      return "\033[36m";
  }
}

// Hands lines to the writer of stderr.
class ServiceSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ServiceSink(bool coloured) : coloured_(coloured) {}

 private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    if (!ServiceLog().Write(Formatted(line))) return;
    const int64_t dropped = ServiceLog().dropped();
    if (dropped == told_) return;
    const std::string text =
        fmt::format("{} log lines were lost: stderr did not take them", dropped - told_);
    const spdlog::details::log_msg loss(line.logger_name, spdlog::level::warn, text);
    if (ServiceLog().Write(Formatted(loss))) told_ = dropped;
  }
  void flush_() override {}

  std::string Formatted(const spdlog::details::log_msg& line) {
    spdlog::memory_buf_t text;
    formatter_->format(line, text);
    std::string out(text.data(), text.size());
    if (coloured_ && line.color_range_end > line.color_range_start) {
      out.insert(line.color_range_end, "\033[m");
      out.insert(line.color_range_start, ColourOf(line.level));
    }
    return out;
  }

  const bool coloured_;
  int64_t told_ = 0;  // lost lines that a line has told of
};

}  // namespace

void InitLogging() {
  spdlog::set_default_logger(spdlog::stderr_color_mt("halfbyte"));
  spdlog::set_pattern("%^%l%$: %v");
  spdlog::set_level(spdlog::level::warn);
  if (const char* level = std::getenv("HALFBYTE_LOG")) spdlog::cfg::helpers::load_levels(level);
}

void InitServiceLogging(spdlog::level::level_enum level, bool json) {
  ServiceLog();  // its thread starts now: what it lacks is told before there is something to log
  const bool coloured = std::getenv("NO_COLOR") == nullptr && ::isatty(STDERR_FILENO) == 1;
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("halfbyte", std::make_shared<ServiceSink>(coloured)));
  spdlog::set_pattern(std::string(kTime) + " %^%l%$ %v");
  if (json) spdlog::set_formatter(std::make_unique<JsonFormatter>());
  spdlog::set_level(level);
}

int64_t DroppedLogLines() { return ServiceLog().dropped(); }
void WriteToLog(std::string line) { ServiceLog().Write(std::move(line)); }
void FlushServiceLog() { ServiceLog().Drain(kLastLines); }

}  // namespace halfbyte
