// `halfbyte bench serve`: how fast a server is for one and for many clients (docs/serving.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "loadgen/load_run.h"
#include "loadgen/metrics_text.h"
#include "loadgen/server_address.h"

namespace halfbyte {

struct ServeBenchOptions {
  ServerAddress server;
  std::string key;  // of the API; empty: none

  std::vector<int> concurrency = {1, 8, 32};  // one load after another
  int64_t requests = 0;                       // of each load; 0: eight per client, at least 32
  std::string text;  // where the prompts are cut from, again and again if it is short
  int64_t prompt_tokens = 32;
  int64_t prompts = 8;  // different ones
  int64_t max_tokens = 128;
  bool ignore_eos = true;  // every answer has max_tokens
  double temperature = 0;
  uint64_t seed = 1;  // of prompts, answers and what clients do

  double disconnect_fraction = 0;  // see LoadOptions
  double malformed_fraction = 0;
  int64_t burst = 0;
  int stalled_clients = 0;
  int leave_together = 0;
  bool probe_live = false;
  std::chrono::seconds limit{600};
};

struct ServeBenchRow {
  int concurrency = 0;
  LoadResult load;
  Metrics before, after;  // of the server; after: when it is idle again
  bool idle = false;      // it became idle: no request left, pools as before but for the cache

  // Requests of the load that the server counts as ended, by reason ("stop", "length", "abort",
  // "error"; empty: all).
  double Ended(std::string_view reason = "") const;
  // Each request that was taken in has ended, once.
  bool accounted() const;
};

struct ServeBenchReport {
  ServeBenchOptions options;
  std::string model;
  std::string version;  // what /version says
  std::vector<ServeBenchRow> rows;

  // Nothing was lost, changed or unexpected, and the server became idle after each load.
  bool ok() const;
};

// Runs each different request alone, once, and keeps what it gave; then the loads, in which every
// stream must give the same.
// Errors: the server does not answer, or refuses these requests.
Result<ServeBenchReport> BenchServe(const ServeBenchOptions& options);

std::string ServeBenchText(const ServeBenchReport& report);
Json ServeBenchJson(const ServeBenchReport& report);

}  // namespace halfbyte
