#include "server/request_log.h"

#include <utility>

#include "base/log.h"

namespace halfbyte {
namespace {

double Milliseconds(EngineClock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

std::string Since(EngineClock::time_point start, std::optional<EngineClock::time_point> time) {
  return time ? fmt::format("{:.1f}", Milliseconds(*time - start)) : "-";
}

// The earliest time that is known.
void Earlier(std::optional<EngineClock::time_point>& time,
             const std::optional<EngineClock::time_point>& other) {
  if (other && (!time || *other < *time)) time = other;
}

}  // namespace

void RequestLog::Submitted(const std::shared_ptr<CallRecord>& call, RequestId id) {
  const std::lock_guard lock(mutex_);
  if (const auto early = early_.extract(id)) {
    call->reports.push_back(std::move(early.mapped()));
    return;
  }
  ++call->running;
  running_.emplace(id, call);
}

void RequestLog::Finished(const RequestReport& report) {
  const std::lock_guard lock(mutex_);
  const auto node = running_.extract(report.id);
  if (!node) {
    early_.emplace(report.id, report);
    return;
  }
  CallRecord& call = *node.mapped();
  call.reports.push_back(report);
  --call.running;
  WriteIfComplete(call);
}

void RequestLog::Answered(const std::shared_ptr<CallRecord>& call, int status,
                          EngineClock::time_point now) {
  const std::lock_guard lock(mutex_);
  call->status = status;
  call->end = now;
  WriteIfComplete(*call);
}

void RequestLog::WriteIfComplete(const CallRecord& call) {
  if (call.status && call.running == 0) spdlog::info("request {}", Line(call));
}

std::string RequestLog::Line(const CallRecord& call) {
  int64_t prompt = 0, cached = 0, output = 0, preemptions = 0;
  std::string finishes;
  std::optional<EngineClock::time_point> scheduled, first_token;
  for (const RequestReport& report : call.reports) {
    prompt += report.prompt_tokens;
    cached += report.cached_tokens;
    output += report.completion_tokens;
    preemptions += report.preemptions;
    Earlier(scheduled, report.scheduled);
    Earlier(first_token, report.first_token);
    for (const Finish& finish : report.finishes) {
      finishes += finishes.empty() ? "" : ",";
      finishes += Name(finish.reason);
      if (finish.cancelled) finishes += fmt::format("({})", Name(*finish.cancelled));
    }
  }
  return fmt::format(
      "id={} client={} route={} status={} finish={} prompt={} cached={} output={} queue_ms={} "
      "ttft_ms={} "
      "total_ms={:.1f} preemptions={}",
      call.id, call.client, call.route, call.status.value_or(0), finishes.empty() ? "-" : finishes,
      prompt, cached, output, Since(call.arrival, scheduled), Since(call.arrival, first_token),
      Milliseconds(call.end - call.arrival), preemptions);
}

}  // namespace halfbyte
