#include "base/progress.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace halfbyte {
namespace {

constexpr double kRedrawSeconds = 0.1;

// A paused terminal takes nothing, and the work does not wait for it.
bool StderrTakesBytes() {
  pollfd state = {.fd = STDERR_FILENO, .events = POLLOUT};
  return ::poll(&state, 1, 0) == 1 && (state.revents & POLLOUT) != 0;
}

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

std::string HumanBytes(int64_t bytes) { return HumanQuantity(static_cast<double>(bytes), "B"); }

double ProgressReport::share() const {
  return total > 0 ? std::clamp(double(done) / double(total), 0.0, 1.0) : 1.0;
}

double ProgressReport::seconds_left() const {
  return done > 0 ? seconds * double(total - done) / double(done) : 0;
}

double ProgressReport::rate() const { return seconds > 0 ? double(done) / seconds : 0; }

std::string ProgressReport::Describe() const {
  if (done == 0) return label;
  return fmt::format("{}: {:.0f} %, {} of {}, {}/s, {} left", label, share() * 100,
                     HumanQuantity(double(done), unit), HumanQuantity(double(total), unit),
                     HumanQuantity(rate(), unit), HumanTime(seconds_left()));
}

Progress::Progress(std::string label, int64_t total, std::string unit, ProgressListener listener)
    : listener_(std::move(listener)),
      visible_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      report_{.label = std::move(label), .unit = std::move(unit), .total = total} {}

Progress::~Progress() {
  if (visible_ && last_drawn_ >= 0 && StderrTakesBytes()) std::fputs("\r\033[K", stderr);
}

void Progress::Advance(int64_t amount) {
  const std::lock_guard lock(mutex_);
  report_.done += amount;
  report_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (listener_) listener_(report_);
  if (!visible_) return;
  if (report_.seconds - last_drawn_ >= kRedrawSeconds || report_.done >= report_.total) Draw();
}

void Progress::Draw() {
  last_drawn_ = report_.seconds;
  if (!StderrTakesBytes()) return;
  constexpr int kWidth = 24;
  const double share = report_.share();
  const int filled = static_cast<int>(share * kWidth);
  fmt::print(stderr, "\r\033[K{} [{:#<{}}{:.<{}}] {:3.0f} %  {}/s  ETA {}", report_.label, "",
             filled, "", kWidth - filled, share * 100, HumanQuantity(report_.rate(), report_.unit),
             HumanTime(report_.seconds_left()));
  std::fflush(stderr);
}

}  // namespace halfbyte
