// Counters and histograms of the server in Prometheus' text format (server.md §2.9). Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace halfbyte {

class Metrics {
 public:
  // Names of metrics begin with "`prefix`:"; those of HTTP and of the process have none.
  Metrics(std::string_view prefix, const std::string& model_name);
  ~Metrics();

  // As EngineObserver's, on the engine's thread.
  void OnStep(const StepReport& step);
  void OnFinished(const RequestReport& request);

  // An answer is complete, or its client has gone. `handler`: the route's pattern. Both names are
  // kept as they are: constants.
  void CountAnswer(std::string_view handler, std::string_view method, int status, double seconds);
  // A generating request was turned away; `reason`: the error's code.
  void CountRejection(const std::string& reason);
  // A key was refused; `reason`: "missing", "wrong".
  void CountRefusedKey(std::string_view reason);
  // From a token's draw to its way into the socket.
  void ObserveChunkDelay(double seconds);

  // What is true at one moment.
  struct Moment {
    double load_progress = 0;                // 0 .. 1
    std::optional<EngineStatistics> engine;  // once it runs
  };
  std::string Text(const Moment& now);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace halfbyte
