#include "server/lifecycle.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "server/responses.h"

namespace halfbyte {

void Lifecycle::SetProgress(const ProgressReport& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
}

ProgressReport Lifecycle::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

Lifecycle::Phase Lifecycle::phase() const {
  const std::lock_guard lock(mutex_);
  return phase_;
}

void Lifecycle::Advance(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = std::max(phase_, phase);
}

void Lifecycle::Watch(const EngineStatistics& statistics, EngineClock::time_point now) {
  const std::lock_guard lock(mutex_);
  dead_ = statistics.dead;
  const bool moved = statistics.last_progress != engine_progress_;
  engine_progress_ = statistics.last_progress;
  if (statistics.unfinished_requests == 0) {
    working_since_.reset();
  } else if (moved || !working_since_) {
    working_since_ = now;
  }
}

bool Lifecycle::alive(EngineClock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return !dead_ && (!working_since_ || now - *working_since_ < kStandstill);
}

HttpResponse Lifecycle::Live(EngineClock::time_point now) const {
  return alive(now) ? JsonResponse(200, Json{{"status", "alive"}}.dump())
                    : JsonResponse(503, Json{{"status", "dead"}}.dump());
}

HttpResponse Lifecycle::Ready() const {
  const std::lock_guard lock(mutex_);
  switch (phase_) {
    case Phase::kReady:
      return JsonResponse(200, Json{{"status", "ready"}}.dump());
    case Phase::kDraining:
      return JsonResponse(503, Json{{"status", "draining"}}.dump());
    case Phase::kFailed:
      return JsonResponse(503, Json{{"status", "failed"}}.dump());
    case Phase::kLoading:
      break;
  }
  return JsonResponse(503, Json{{"status", "loading"},
                                {"phase", progress_.label},
                                {"progress", std::round(progress_.share() * 1000) / 1000},
                                {"eta_s", std::llround(progress_.seconds_left())}}
                               .dump());
}

}  // namespace halfbyte
