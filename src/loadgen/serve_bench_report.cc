#include <algorithm>
#include <cmath>

#include "loadgen/latencies.h"
#include "loadgen/serve_bench.h"

namespace halfbyte {
namespace {

double Growth(const ServeBenchRow& row, std::string_view name) {
  return SumOf(row.after, name) - SumOf(row.before, name);
}

double TokensPerSecond(const LoadResult& load) {
  return static_cast<double>(load.tokens) / load.seconds;
}

// Of the server, all threads together.
double CpuMicrosecondsPerToken(const ServeBenchRow& row) {
  return Growth(row, "process_cpu_seconds_total") * 1e6 /
         static_cast<double>(std::max<int64_t>(1, row.load.tokens));
}

double LargestResident(const LoadResult& load) {
  double largest = 0;
  for (const MetricsSample& sample : load.samples) {
    largest = std::max(largest, sample.resident_bytes);
  }
  return largest;
}

// What /metrics said in the course of the load, thinned out.
Json SamplesJson(const LoadResult& load) {
  constexpr size_t kMost = 30;
  Json samples = Json::array();
  const size_t stride = std::max<size_t>(1, load.samples.size() / kMost);
  for (size_t i = 0; i < load.samples.size(); i += stride) {
    const MetricsSample& sample = load.samples[i];
    samples.push_back({{"s", std::round(sample.seconds)},
                       {"resident_mb", Rounded(sample.resident_bytes / 1e6)},
                       {"open_files", sample.open_files},
                       {"running", sample.running}});
  }
  return samples;
}

Json ServerJson(const ServeBenchRow& row) {
  return {{"cpu_us_per_token", Rounded(CpuMicrosecondsPerToken(row))},
          {"resident_mb_before", Rounded(SumOf(row.before, "process_resident_memory_bytes") / 1e6)},
          {"resident_mb_most", Rounded(LargestResident(row.load) / 1e6)},
          {"resident_mb_after", Rounded(SumOf(row.after, "process_resident_memory_bytes") / 1e6)},
          {"open_files_before", SumOf(row.before, "process_open_fds")},
          {"open_files_after", SumOf(row.after, "process_open_fds")},
          {"requests_ended",
           {{"stop", row.Ended("stop")},
            {"length", row.Ended("length")},
            {"abort", row.Ended("abort")},
            {"error", row.Ended("error")}}},
          {"all_accounted_for", row.accounted()},
          {"generation_tokens", Growth(row, "halfbyte:generation_tokens_total")},
          {"preemptions", Growth(row, "halfbyte:num_preemptions_total")},
          {"samples", SamplesJson(row.load)},
          {"idle_afterwards", row.idle}};
}

Json RowJson(const ServeBenchRow& row) {
  const LoadResult& load = row.load;
  Json json = {{"concurrency", row.concurrency},
               {"seconds", Rounded(load.seconds)},
               {"requests",
                {{"started", load.started},
                 {"complete", load.complete},
                 {"left", load.disconnected},
                 {"refused", load.refused}}},
               {"tokens", load.tokens},
               {"tokens_per_second", Rounded(TokensPerSecond(load))},
               {"tokens_per_event", Rounded(static_cast<double>(load.tokens) /
                                            std::max<double>(1, static_cast<double>(load.events)))},
               {"first_token", load.first_token.ToJson()},
               {"between_events", load.between_events.ToJson()}};
  if (load.chunk_delay.count() > 0) json["chunk_delay"] = load.chunk_delay.ToJson();
  if (load.refusal.count() > 0) json["refusal"] = load.refusal.ToJson();
  if (load.live.count() > 0) json["live"] = load.live.ToJson();
  if (load.stalled_released != 0) json["stalled_released_seconds"] = Rounded(load.stalled_released);
  if (load.left_released != 0) json["left_released_ms"] = Rounded(load.left_released * 1000);
  for (const auto& [status, count] : load.statuses) {
    json["statuses"][std::to_string(status)] = count;
  }
  for (const auto& [code, count] : load.stream_errors) json["stream_errors"][code] = count;
  json["faults"] = load.faults;
  for (const std::string& fault : load.first_faults) json["first_faults"].push_back(fault);
  json["server"] = ServerJson(row);
  return json;
}

std::string LatencyText(std::string_view name, const Latencies& latencies) {
  if (latencies.count() == 0) return "";
  return fmt::format("  {:<15} {:9.2f} {:9.2f} {:9.2f} {:9.2f}\n", name, latencies.Percentile(0.5),
                     latencies.Percentile(0.9), latencies.Percentile(0.99), latencies.max_ms());
}

std::string RowText(const ServeBenchRow& row) {
  const LoadResult& load = row.load;
  std::string text =
      fmt::format("{} clients: {:.1f} tokens/s, {} of {} requests complete", row.concurrency,
                  TokensPerSecond(load), load.complete, load.started);
  if (load.disconnected > 0) text += fmt::format(", {} left", load.disconnected);
  if (load.refused > 0) text += fmt::format(", {} refused (429)", load.refused);
  text += fmt::format("\n  {:<15} {:>9} {:>9} {:>9} {:>9}\n", "ms", "p50", "p90", "p99", "max");
  text += LatencyText("first token", load.first_token) +
          LatencyText("between events", load.between_events) +
          LatencyText("chunk delay", load.chunk_delay) + LatencyText("refusal", load.refusal) +
          LatencyText("/live", load.live);
  text += fmt::format("  server: {:.1f} us CPU per token, at most {:.1f} MB resident{}\n",
                      CpuMicrosecondsPerToken(row), LargestResident(load) / 1e6,
                      row.idle ? "" : ", NOT IDLE afterwards");
  if (!row.accounted()) {
    text += fmt::format("  it counts {} requests as ended, which is NOT what it took in\n",
                        row.Ended());
  }
  if (load.left_released != 0) {
    text += fmt::format("  requests of clients that left together were gone after {:.1f} ms\n",
                        load.left_released * 1000);
  }
  if (load.stalled_released > 0) {
    text += fmt::format("  stalled clients' requests were over after {:.1f} s\n",
                        load.stalled_released);
  } else if (load.stalled_released < 0) {
    text += "  stalled clients' requests were NEVER OVER\n";
  }
  for (const auto& [code, count] : load.stream_errors) {
    text += fmt::format("  {} streams ended with error {}\n", count, code);
  }
  for (const std::string& fault : load.first_faults) text += "  FAULT: " + fault + "\n";
  if (load.faults > 0) text += fmt::format("  {} faults\n", load.faults);
  return text;
}

}  // namespace

std::string ServeBenchText(const ServeBenchReport& report) {
  const ServeBenchOptions& options = report.options;
  std::string text = fmt::format(
      "{} at {}: prompts of {} tokens, {} to {} tokens, every answer compared with its own alone\n",
      report.model, options.server.Url(), options.prompt_tokens,
      options.ignore_eos ? "exactly" : "up", options.max_tokens);
  for (const ServeBenchRow& row : report.rows) text += RowText(row);
  return text;
}

Json ServeBenchJson(const ServeBenchReport& report) {
  const ServeBenchOptions& options = report.options;
  Json json = {{"model", report.model},
               {"server", Json::parse(report.version)},
               {"prompt_tokens", options.prompt_tokens},
               {"prompts", options.prompts},
               {"max_tokens", options.max_tokens},
               {"ignore_eos", options.ignore_eos},
               {"temperature", options.temperature},
               {"seed", options.seed},
               {"ok", report.ok()},
               {"loads", Json::array()}};
  for (const ServeBenchRow& row : report.rows) json["loads"].push_back(RowJson(row));
  return json;
}

}  // namespace halfbyte
