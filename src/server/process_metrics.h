// process_*: what Prometheus' own clients say about their process, from /proc.
#pragma once

#include <prometheus/gauge.h>
#include <prometheus/registry.h>

namespace halfbyte {

class ProcessMetrics {
 public:
  explicit ProcessMetrics(prometheus::Registry& registry);
  // Reads /proc; what it does not say keeps its value.
  void Update();

 private:
  prometheus::Counter& cpu_seconds_;
  prometheus::Gauge& resident_bytes_;
  prometheus::Gauge& virtual_bytes_;
  prometheus::Gauge& open_fds_;
  prometheus::Gauge& max_fds_;
  prometheus::Gauge& threads_;
  prometheus::Gauge& start_time_;
};

}  // namespace halfbyte
