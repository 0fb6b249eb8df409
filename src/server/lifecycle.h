// Loading, ready, draining, failed: what /live, /ready and /health say (server.md §2.2, §2.8).
// Thread-safe. Time is an argument.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "base/progress.h"
#include "engine/engine.h"
#include "http/http.h"

namespace halfbyte {

class Lifecycle {
 public:
  enum class Phase { kLoading, kReady, kDraining, kFailed };

  // How far loading is.
  void SetProgress(const ProgressReport& progress);
  ProgressReport progress() const;

  // Phases only go forward: nothing leads back from draining or failed.
  void SetReady() { Advance(Phase::kReady); }
  void SetDraining() { Advance(Phase::kDraining); }
  void SetFailed() { Advance(Phase::kFailed); }
  Phase phase() const;

  // The engine at this moment; to be told at least once a second.
  void Watch(const EngineStatistics& statistics, EngineClock::time_point now);
  // False when the engine has died, or stood still for kStandstill with work to do.
  bool alive(EngineClock::time_point now) const;
  static constexpr std::chrono::seconds kStandstill{60};

  HttpResponse Live(EngineClock::time_point now) const;
  HttpResponse Ready() const;

 private:
  void Advance(Phase phase);

  mutable std::mutex mutex_;
  Phase phase_ = Phase::kLoading;
  ProgressReport progress_{.label = "start", .total = 1};
  bool dead_ = false;
  EngineClock::time_point engine_progress_;               // as it says
  std::optional<EngineClock::time_point> working_since_;  // without progress; none: nothing to do
};

}  // namespace halfbyte
