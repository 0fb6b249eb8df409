#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace halfbyte {
namespace {

constexpr double kRedrawSeconds = 0.1;

std::string HumanTime(double seconds) {
  const int64_t s = std::llround(seconds);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

std::string HumanQuantity(double amount, const std::string& unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (amount >= 1000 && prefix + 1 < std::size(kPrefixes)) {
    amount /= 1000;
    ++prefix;
  }
  return prefix == 0 ? fmt::format("{:.0f} {}", amount, unit)
                     : fmt::format("{:.2f} {}{}", amount, kPrefixes[prefix], unit);
}

Progress::Progress(std::string label, int64_t total, std::string unit)
    : label_(std::move(label)),
      total_(total),
      unit_(std::move(unit)),
      visible_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (visible_ && last_drawn_ >= 0) std::fputs("\r\033[K", stderr);
}

void Progress::Advance(int64_t amount) {
  const std::lock_guard lock(mutex_);
  done_ += amount;
  if (!visible_) return;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (seconds - last_drawn_ >= kRedrawSeconds || done_ >= total_) Draw(seconds);
}

void Progress::Draw(double seconds) {
  last_drawn_ = seconds;
  constexpr int kWidth = 24;
  const double share = total_ > 0 ? std::clamp(double(done_) / double(total_), 0.0, 1.0) : 1.0;
  const int filled = static_cast<int>(share * kWidth);
  const double rate = seconds > 0 ? double(done_) / seconds : 0;
  const double left = rate > 0 ? double(total_ - done_) / rate : 0;
  fmt::print(stderr, "\r\033[K{} [{:#<{}}{:.<{}}] {:3.0f} %  {}/s  ETA {}", label_, "", filled, "",
             kWidth - filled, share * 100, HumanQuantity(rate, unit_), HumanTime(left));
  std::fflush(stderr);
}

}  // namespace halfbyte
