// One line of log for each request that generates: what HTTP knows of it and what the engine does.
// Whoever is told last writes it. Never prompts, outputs or keys. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace halfbyte {

// One HTTP request. The log's own part is guarded by its mutex.
struct CallRecord {
  std::string id;          // x-request-id
  std::string_view route;  // a pattern, static
  std::string client;      // HttpRequest::peer
  EngineClock::time_point arrival;

  // The log's own, under its mutex.
  int64_t running = 0;  // engine requests without a report
  std::vector<RequestReport> reports;
  std::optional<int> status;  // of the answer that is over
  EngineClock::time_point end;
};

class RequestLog {
 public:
  // `id` was accepted by the engine for `call`. Not after Answered.
  void Submitted(const std::shared_ptr<CallRecord>& call, RequestId id);
  // The engine is done with a request; may be known before Submitted is called.
  void Finished(const RequestReport& report);
  // The answer is complete, or nobody waits for it any more.
  void Answered(const std::shared_ptr<CallRecord>& call, int status, EngineClock::time_point now);

  // "id=... client=... route=... status=200 finish=stop prompt=12 ..."
  static std::string Line(const CallRecord& call);

 private:
  static void WriteIfComplete(const CallRecord& call);

  std::mutex mutex_;
  std::map<RequestId, std::shared_ptr<CallRecord>> running_;
  std::map<RequestId, RequestReport> early_;  // reports of requests not yet known here
};

}  // namespace halfbyte
