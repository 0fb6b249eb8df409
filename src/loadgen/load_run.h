// One load on a server of this machine: so many clients at once, each with its own connection, on
// one thread (epoll), cheap enough to share two cores with the server.
//
// Every stream is compared, token by token, with what its request gave when it ran alone.
//
// What is measured, all on CLOCK_MONOTONIC when the read that brought the bytes returns, so the
// client's own delay is in it:
//   first_token    from before connecting or sending to the first event with tokens
//   between_events from one event with tokens of a stream to its next one
//   chunk_delay    from the moment the server drew a token (the end of its step, told by the
//                  comments that the header x-halfbyte-timing asks for) to the arrival of its event
//   refusal        from before connecting or sending to the end of an answer of status 429
//   live           a GET /live every 20 ms meanwhile, if `probe_live`
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "loadgen/latencies.h"
#include "loadgen/server_address.h"
#include "loadgen/stream_check.h"

namespace halfbyte {

struct LoadRequest {
  std::string body;  // of /v1/completions, with stream, include_usage and return_token_ids
  ExpectedAnswer expected;
};

struct LoadOptions {
  ServerAddress server;
  std::string key;
  std::vector<LoadRequest> requests;  // at least one; taken in turn

  int concurrency = 1;  // clients; each starts its next request when one has ended
  int64_t count = 1;    // requests of all of them together

  double disconnect_fraction = 0;  // of them are left after a random number of events
  double malformed_fraction = 0;   // of them are malformed and must be answered 4xx
  int64_t burst = 0;  // further clients that send one request each, as fast as it goes, after 1 s
  int stalled_clients = 0;  // further clients that read nothing after their first tokens
  int leave_together = 0;   // so many of the clients leave in the same moment, after 1 s, for good

  bool probe_live = false;
  uint64_t seed = 1;
  std::chrono::seconds limit{600};  // the load gives up after this time
};

// What /metrics said during the load, once a second.
struct MetricsSample {
  double seconds = 0;
  double resident_bytes = 0;
  double open_files = 0;
  double running = 0;  // requests
};

struct LoadResult {
  double seconds = 0;
  int64_t started = 0;
  int64_t complete = 0;      // streams that ended and were right
  int64_t disconnected = 0;  // left on purpose
  int64_t refused = 0;       // 429, each with Retry-After; its client sends nothing more
  int64_t tokens = 0;
  int64_t events = 0;  // that carried tokens
  std::map<int, int64_t> statuses;
  std::map<std::string, int64_t> stream_errors;  // by code: told inside a stream
  int64_t faults = 0;  // anything lost, changed or unexpected; its client sends nothing more
  std::vector<std::string> first_faults;  // the first few, in words
  Latencies first_token, between_events, chunk_delay, refusal, live;
  std::vector<MetricsSample> samples;
  // Seconds until the server had no running request left while stalled clients kept their
  // connections open; below 0: it never did.
  double stalled_released = 0;
  // Seconds from the moment when clients left together to the first look at /metrics (one after
  // another then) that shows their requests gone; below 0: that never came.
  double left_released = 0;
};

// Errors: there is no epoll. What the server does wrong is a fault of the result.
Result<LoadResult> RunLoad(const LoadOptions& options);

}  // namespace halfbyte
