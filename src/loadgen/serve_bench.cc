#include "loadgen/serve_bench.h"

#include <algorithm>
#include <random>
#include <thread>

namespace halfbyte {
namespace {

using std::chrono::milliseconds;

constexpr auto kIdlePatience = std::chrono::seconds(20);
constexpr auto kReadyPatience = std::chrono::minutes(10);

Result<HttpAnswer> FetchOk(const ServeBenchOptions& options, std::string_view path,
                           std::string_view body = "") {
  HB_ASSIGN_OR_RETURN(HttpAnswer answer,
                      Fetch(options.server, path, body, options.key, options.limit));
  if (answer.head.status == 200) return answer;
  return MakeError("{}{} answers {}: {}", options.server.Url(), path, answer.head.status,
                   answer.body);
}

Result<Json> FetchJson(const ServeBenchOptions& options, std::string_view path,
                       std::string_view body = "") {
  HB_ASSIGN_OR_RETURN(const HttpAnswer answer, FetchOk(options, path, body));
  return ParseJson(answer.body, path);
}

Status WaitUntilReady(const ServeBenchOptions& options) {
  const auto end = std::chrono::steady_clock::now() + kReadyPatience;
  while (true) {
    HB_ASSIGN_OR_RETURN(const HttpAnswer answer, Fetch(options.server, "/ready", "", options.key));
    if (answer.head.status == 200) return {};
    if (std::chrono::steady_clock::now() > end) {
      return MakeError("{} is not ready: {}", options.server.Url(), answer.body);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

// Bodies of /v1/completions whose prompts are cut from the text, each from another place.
Result<std::vector<Json>> MakeBodies(const ServeBenchOptions& options) {
  const Json question = {{"prompt", options.text}};
  HB_ASSIGN_OR_RETURN(const Json tokenized, FetchJson(options, "/tokenize", question.dump()));
  const auto ids = tokenized.at("tokens").get<std::vector<int32_t>>();
  if (ids.empty()) return MakeError("the text for prompts has no token");
  std::mt19937_64 random(options.seed);
  std::vector<Json> bodies;
  for (int64_t i = 0; i < options.prompts; ++i) {
    const size_t begin = random() % ids.size();
    std::vector<int32_t> prompt;
    for (int64_t j = 0; j < options.prompt_tokens; ++j) {
      prompt.push_back(ids[(begin + static_cast<size_t>(j)) % ids.size()]);
    }
    bodies.push_back({{"prompt", prompt},
                      {"max_tokens", options.max_tokens},
                      {"ignore_eos", options.ignore_eos},
                      {"temperature", options.temperature},
                      {"seed", static_cast<int64_t>(options.seed % 1000000) + i},
                      {"return_token_ids", true}});
  }
  return bodies;
}

Result<LoadRequest> RunAlone(const ServeBenchOptions& options, Json body) {
  HB_ASSIGN_OR_RETURN(const HttpAnswer answer, FetchOk(options, "/v1/completions", body.dump()));
  CompletionReader reader;
  HB_ASSIGN_OR_RETURN(CompletionPiece piece, reader.Read(answer.body));
  if (piece.ids.empty()) return MakeError("no token ids in {}", answer.body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return LoadRequest{.body = body.dump(),
                     .expected = {.ids = std::move(piece.ids),
                                  .text = std::move(piece.text),
                                  .finish_reason = std::move(piece.finish_reason)}};
}

bool IsIdle(const Metrics& metrics) {
  return SumOf(metrics, "halfbyte:num_requests_running") == 0 &&
         SumOf(metrics, "halfbyte:num_requests_waiting") == 0 &&
         SumOf(metrics, "halfbyte:kv_cache_usage_perc") == 0;
}

// Waits for the server to have nothing to do, and says whether it came to that.
Result<bool> ReadIdleMetrics(const ServeBenchOptions& options, Metrics& metrics) {
  const auto end = std::chrono::steady_clock::now() + kIdlePatience;
  while (true) {
    HB_ASSIGN_OR_RETURN(const HttpAnswer answer, FetchOk(options, "/metrics"));
    metrics = ParseMetrics(answer.body);
    if (IsIdle(metrics)) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
}

}  // namespace

double ServeBenchRow::Ended(std::string_view reason) const {
  constexpr std::string_view kName = "halfbyte:request_success_total";
  return SumOf(after, kName, reason) - SumOf(before, kName, reason);
}

bool ServeBenchRow::accounted() const {
  int64_t taken = load.started;
  for (const auto& [status, count] : load.statuses) taken -= status == 200 ? 0 : count;
  return Ended() == static_cast<double>(taken);
}

bool ServeBenchReport::ok() const {
  return std::all_of(rows.begin(), rows.end(), [](const ServeBenchRow& row) {
    return row.load.faults == 0 && row.load.stream_errors.empty() && row.idle && row.accounted() &&
           row.load.stalled_released >= 0 && row.load.left_released >= 0;
  });
}

Result<ServeBenchReport> BenchServe(const ServeBenchOptions& options) {
  HB_RETURN_IF_ERROR(WaitUntilReady(options));
  ServeBenchReport report{.options = options};
  HB_ASSIGN_OR_RETURN(const Json models, FetchJson(options, "/v1/models"));
  report.model = models.at("data").at(0).at("id");
  HB_ASSIGN_OR_RETURN(const Json version, FetchJson(options, "/version"));
  report.version = version.dump();

  LoadOptions load{.server = options.server,
                   .key = options.key,
                   .disconnect_fraction = options.disconnect_fraction,
                   .malformed_fraction = options.malformed_fraction,
                   .burst = options.burst,
                   .stalled_clients = options.stalled_clients,
                   .leave_together = options.leave_together,
                   .probe_live = options.probe_live,
                   .seed = options.seed,
                   .limit = options.limit};
  HB_ASSIGN_OR_RETURN(const std::vector<Json> bodies, MakeBodies(options));
  for (const Json& body : bodies) {
    HB_ASSIGN_OR_RETURN(LoadRequest request, RunAlone(options, body));
    load.requests.push_back(std::move(request));
  }
  for (const int concurrency : options.concurrency) {
    ServeBenchRow& row = report.rows.emplace_back(ServeBenchRow{.concurrency = concurrency});
    load.concurrency = concurrency;
    load.count = options.requests > 0 ? options.requests : std::max(32, 8 * concurrency);
    HB_ASSIGN_OR_RETURN(row.idle, ReadIdleMetrics(options, row.before));
    HB_ASSIGN_OR_RETURN(row.load, RunLoad(load));
    HB_ASSIGN_OR_RETURN(row.idle, ReadIdleMetrics(options, row.after));
  }
  return report;
}

}  // namespace halfbyte
