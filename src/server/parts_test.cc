// The parts of the server that need no model.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>

#include "base/file.h"
#include "server/allowed_hosts.h"
#include "server/api_keys.h"
#include "server/lifecycle.h"
#include "server/metrics.h"
#include "server/process_limits.h"
#include "server/refused_keys.h"
#include "server/request_log.h"
#include "server/routes.h"
#include "server/serve.h"
#include "server/work_pool.h"

namespace halfbyte {
namespace {

using namespace std::chrono_literals;

HttpFields Authorization(const std::string& value) { return {{"Authorization", value}}; }

TEST(ApiKeys, AreTakenAsBearerFieldOrPassword) {
  const auto keys = *ApiKeys::Create({"one", "two:2"}, {});
  EXPECT_TRUE(keys->Admit(Authorization("Bearer one")));
  EXPECT_TRUE(keys->Admit(Authorization("bearer  two:2")));
  EXPECT_TRUE(keys->Admit({{"X-Api-Key", "one"}}));
  EXPECT_TRUE(keys->Admit(Authorization("Basic dTpvbmU=")));   // u:one
  EXPECT_TRUE(keys->Admit(Authorization("Basic OnR3bzoy")));   // :two:2
  EXPECT_FALSE(keys->Admit(Authorization("Basic b25l")));      // one, no colon
  EXPECT_FALSE(keys->Admit(Authorization("Basic b25lOnU=")));  // one:u
  EXPECT_FALSE(keys->Admit(Authorization("Basic dTpv*mU=")));  // not base64
  for (const char* wrong : {"Bearer on", "Bearer onee", "Bearer oneone", "Bearer ", "Bearer", "one",
                            "Digest one", ""}) {
    EXPECT_FALSE(keys->Admit(Authorization(wrong))) << wrong;
  }
  EXPECT_FALSE(keys->Admit({}));
}

TEST(ApiKeys, WithoutAnyEverybodyMayAsk) {
  const auto keys = *ApiKeys::Create({}, {});
  EXPECT_FALSE(keys->required());
  EXPECT_TRUE(keys->Admit({}));
  EXPECT_FALSE(ApiKeys::Create({""}, {}));
}

TEST(ApiKeys, AreReadAgainFromTheirFileUnlessItIsBad) {
  const auto path = std::filesystem::path(testing::TempDir()) / "halfbyte_keys";
  const HttpFields old_key{{"x-api-key", "old"}}, new_key{{"x-api-key", "new"}};
  ASSERT_TRUE(WriteFileAtomically(path, "# ours\n\n  old \r\n"));
  const auto keys = *ApiKeys::Create({}, path);
  EXPECT_TRUE(keys->Admit(old_key));
  EXPECT_FALSE(keys->Admit({{"x-api-key", "# ours"}}));
  ASSERT_TRUE(WriteFileAtomically(path, "new"));
  EXPECT_FALSE(keys->Admit(new_key));
  ASSERT_TRUE(keys->Reload());
  EXPECT_TRUE(keys->Admit(new_key));
  EXPECT_FALSE(keys->Admit(old_key));
  ASSERT_TRUE(WriteFileAtomically(path, "# none\n"));
  EXPECT_FALSE(keys->Reload());
  EXPECT_TRUE(keys->Admit(new_key));
  std::filesystem::remove(path);
  EXPECT_FALSE(ApiKeys::Create({}, path));
}

TEST(AllowedHosts, AreAddressesLocalhostAndTheNamesGiven) {
  const AllowedHosts hosts({"Box", ".llm.example"});
  for (const char* host : {"127.0.0.1", "127.0.0.1:8000", "192.168.1.5:1", "[::1]", "[::1]:8000",
                           "[2001:db8::1]:1", "localhost", "LOCALHOST:8000", "localhost.:8000",
                           "chat.localhost", "box", "BOX:80", "llm.example", "a.b.LLM.example:1"}) {
    EXPECT_TRUE(hosts.Admit(host)) << host;
  }
  for (const char* host :
       {"evil.test", "evil.test:8000", "", ":8000", "box.evil.test", "box:80@evil.test",
        "xllm.example", "notlocalhost", "localhost.evil.test", "127.0.0.1.evil.test", "127.1",
        "2130706433", "0x7f.0.0.1", "[::1", "[::1]evil.test", "[evil.test]", "::1", "a b"}) {
    EXPECT_FALSE(hosts.Admit(host)) << host;
  }
  EXPECT_TRUE(AllowedHosts({"*"}).Admit("evil.test"));
}

TEST(AllowedHosts, ThatCannotBeNamesAreToldByTheFlag) {
  for (const char* name : {"llm.example.com", ".example.com", "box_1", "*"}) {
    EXPECT_EQ(AllowedHosts::Fault(name), "") << name;
  }
  for (const char* name : {"", ".", "http://box", "box:8000", "*.example.com", "a b", "box."}) {
    EXPECT_NE(AllowedHosts::Fault(name).find("--allowed-hosts"), std::string::npos) << name;
  }
}

TEST(RefusedKeys, OfOneAddressAreAnsweredLateAndLoggedSeldomOnceThereAreMany) {
  RefusedKeys refused;
  const RefusedKeys::TimePoint start{1000s};
  for (int i = 0; i < RefusedKeys::kFree; ++i) {
    const auto verdict = refused.Add(fmt::format("10.0.0.1:{}", i), start);
    EXPECT_TRUE(verdict.log);
    EXPECT_EQ(verdict.answer_at, start);
  }
  for (int i = 0; i < 1000; ++i) {
    const auto verdict = refused.Add("10.0.0.1:9", start);
    EXPECT_FALSE(verdict.log);
    EXPECT_EQ(verdict.answer_at, start + RefusedKeys::kDelay);
  }
  EXPECT_TRUE(refused.Add("10.0.0.2:9", start).log);
  const auto later = refused.Add("10.0.0.1:9", start + RefusedKeys::kRefill);
  EXPECT_TRUE(later.log);
  EXPECT_EQ(later.not_logged, 1000);
  EXPECT_FALSE(refused.Add("10.0.0.1:9", start + RefusedKeys::kRefill).log);
}

TEST(RefusedKeys, OfVeryManyAddressesTakeNoMoreMemory) {
  RefusedKeys refused;
  RefusedKeys::TimePoint now{1000s};
  int logged = 0;
  for (int i = 0; i < 100'000; ++i) {
    logged += refused.Add(fmt::format("10.{}.{}.{}:1", i >> 16, i >> 8 & 255, i & 255), now).log;
  }
  EXPECT_EQ(logged, static_cast<int>(RefusedKeys::kMostAddresses) + RefusedKeys::kFree);
  now += RefusedKeys::kRefill;  // those addresses are forgotten
  EXPECT_TRUE(refused.Add("10.9.9.9:1", now).log);
}

TEST(ProcessLimits, AreAskedBeforeTheyAreNeeded) {
  EXPECT_TRUE(CheckThreads(4));
  // In a process of its own: limits cannot be raised again.
  const auto connections = [](rlim_t files) {
    const rlimit limit{files, files};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    HttpOptions http{.max_connections = 4096};
    return FitToOpenFiles(http) ? http.max_connections : 0;
  };
  EXPECT_EXIT(std::exit(connections(20) == 0 ? 42 : 1), testing::ExitedWithCode(42), "");
  EXPECT_EXIT(std::exit(connections(64) == 16 ? 42 : 1), testing::ExitedWithCode(42), "");
  EXPECT_EXIT(std::exit(connections(1024) == 704 ? 42 : 1), testing::ExitedWithCode(42), "");
}

TEST(Lifecycle, OnlyGoesForward) {
  Lifecycle lifecycle;
  EXPECT_EQ(lifecycle.phase(), Lifecycle::Phase::kLoading);
  lifecycle.SetReady();
  EXPECT_EQ(lifecycle.Ready().head.status, 200);
  lifecycle.SetDraining();
  lifecycle.SetReady();
  EXPECT_EQ(lifecycle.Ready().body, R"({"status":"draining"})");
  lifecycle.SetFailed();
  EXPECT_EQ(lifecycle.Ready().body, R"({"status":"failed"})");
}

TEST(Lifecycle, IsAliveUnlessTheEngineDiesOrStandsStillWithWork) {
  Lifecycle lifecycle;
  const EngineClock::time_point start{1000s};
  EXPECT_TRUE(lifecycle.alive(start));
  EngineStatistics idle{.last_progress = start};
  lifecycle.Watch(idle, start);
  EXPECT_TRUE(lifecycle.alive(start + 1h));
  // Work after an hour without any: the hour does not count.
  EngineStatistics busy{.unfinished_requests = 1, .last_progress = start};
  lifecycle.Watch(busy, start + 1h);
  EXPECT_TRUE(lifecycle.alive(start + 1h + 59s));
  EXPECT_FALSE(lifecycle.alive(start + 1h + 60s));
  busy.last_progress = start + 1h + 61s;
  lifecycle.Watch(busy, start + 1h + 61s);
  EXPECT_TRUE(lifecycle.alive(start + 1h + 62s));
  busy.dead = true;
  lifecycle.Watch(busy, start + 1h + 62s);
  EXPECT_EQ(lifecycle.Live(start + 1h + 62s).head.status, 503);
}

TEST(Routes, AreFoundByTheirPaths) {
  EXPECT_EQ(FindRoute("/v1/chat/completions")->rule->id, RouteId::kChat);
  EXPECT_EQ(FindRoute("/v1/chat/completions/render")->rule->id, RouteId::kRender);
  EXPECT_EQ(FindRoute("/v1/models")->rule->id, RouteId::kModels);
  EXPECT_EQ(FindRoute("/v1/models/org/name")->model_id, "org/name");
  EXPECT_FALSE(FindRoute("/v1/models/"));
  EXPECT_FALSE(FindRoute("/v1/completions/"));
  EXPECT_FALSE(FindRoute(""));
  EXPECT_EQ(KnownMethod("POST"), "POST");
  EXPECT_EQ(KnownMethod("BREW"), "other");
}

RequestReport Report(RequestId id) {
  const EngineClock::time_point start{};
  return {.id = id,
          .finishes = {{.reason = FinishReason::kStop},
                       {.reason = FinishReason::kAbort, .cancelled = CancelCause::kDisconnected}},
          .prompt_tokens = 10,
          .cached_tokens = 4,
          .completion_tokens = 7,
          .preemptions = 1,
          .arrival = start,
          .scheduled = start + 2ms,
          .first_token = start + 5ms,
          .finished = start + 40ms};
}

TEST(RequestLog, TellsWhatBothSidesKnow) {
  CallRecord call{.id = "abc", .route = "/v1/completions", .client = "127.0.0.1:7"};
  call.reports.push_back(Report(1));
  call.reports.push_back(Report(2));
  call.status = 200;
  call.end = call.arrival + 50ms;
  EXPECT_EQ(RequestLog::Line(call),
            "id=abc client=127.0.0.1:7 route=/v1/completions status=200 "
            "finish=stop,abort(disconnected),stop,abort(disconnected) prompt=20 cached=8 "
            "output=14 queue_ms=2.0 ttft_ms=5.0 total_ms=50.0 preemptions=2");
}

TEST(RequestLog, KeepsNothingOfARequestThatIsOver) {
  RequestLog log;
  const auto call = std::make_shared<CallRecord>();
  log.Finished(Report(1));  // before Submitted
  log.Submitted(call, 1);
  log.Submitted(call, 2);
  log.Answered(call, 200, EngineClock::now());
  EXPECT_EQ(call.use_count(), 2);  // request 2 runs
  log.Finished(Report(2));
  EXPECT_EQ(call.use_count(), 1);
  EXPECT_EQ(call->reports.size(), 2u);
}

std::string LineOf(const std::string& text, const std::string& start) {
  const size_t begin = text.find("\n" + start);
  if (begin == std::string::npos) return "no line " + start;
  return text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

TEST(Metrics, SpeakPrometheusUnderThePrefixAndTheModelsName) {
  Metrics metrics("vllm", "tiny");
  RequestReport report = Report(1);
  report.suppressed = {.tags = 6, .thinks = 1};
  metrics.OnFinished(report);
  metrics.OnFinished(report);
  metrics.OnStep({.tokens = 12, .token_gaps = {3ms, 40ms}});
  metrics.CountAnswer("/v1/completions", "POST", 200, 0.05);
  metrics.CountRejection("queue_full");
  EngineStatistics engine{.prompt_tokens = 100, .generation_tokens = 200, .saturated_blocks = 4};
  engine.scheduler.running = 3;
  engine.scheduler.pool_sizes.context_blocks = 8;
  engine.scheduler.context_blocks_referenced = 2;
  const std::string labels = R"({engine="0",model_name="tiny"})";
  std::string text = metrics.Text({.load_progress = 1, .engine = engine});
  EXPECT_EQ(LineOf(text, "vllm:num_requests_running" + labels),
            "vllm:num_requests_running" + labels + " 3");
  EXPECT_EQ(LineOf(text, "vllm:kv_cache_usage_perc" + labels),
            "vllm:kv_cache_usage_perc" + labels + " 0.25");
  EXPECT_EQ(LineOf(text, "vllm:generation_tokens_total" + labels),
            "vllm:generation_tokens_total" + labels + " 200");
  EXPECT_NE(text.find(R"(finished_reason="abort"} 2)"), std::string::npos);
  for (const char* line :
       {R"(markup_suppressed_total{engine="0",model_name="tiny",reason="tag"} 12)",
        R"(markup_suppressed_total{engine="0",model_name="tiny",reason="think"} 2)",
        R"(markup_suppressed_total{engine="0",model_name="tiny",reason="unfinished"} 0)"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(LineOf(text, "vllm:nvfp4_saturated_blocks_total" + labels),
            "vllm:nvfp4_saturated_blocks_total" + labels + " 4");
  EXPECT_NE(text.find(R"(reason="queue_full"} 1)"), std::string::npos);
  EXPECT_NE(text.find(R"(http_requests_total{handler="/v1/completions",method="POST",)"
                      R"(status="200"} 1)"),
            std::string::npos);
  EXPECT_NE(text.find(R"(inter_token_latency_seconds_bucket{engine="0",model_name="tiny",)"
                      R"(le="0.005"} 1)"),
            std::string::npos);
  EXPECT_NE(text.find("process_resident_memory_bytes"), std::string::npos);
  // Counters go up to what the engine says, and not twice.
  engine.generation_tokens = 250;
  text = metrics.Text({.load_progress = 1, .engine = engine});
  EXPECT_EQ(LineOf(text, "vllm:generation_tokens_total" + labels),
            "vllm:generation_tokens_total" + labels + " 250");
}

TEST(WorkPool, RefusesWhenItsQueueIsFull) {
  std::promise<void> release;
  std::atomic<int> done = 0;
  {
    WorkPool pool(1, 2);
    std::promise<void> started;
    ASSERT_TRUE(pool.TryPost(1, [&] {
      started.set_value();
      release.get_future().wait();
    }));
    started.get_future().wait();
    EXPECT_TRUE(pool.TryPost(1, [&] { ++done; }));
    EXPECT_TRUE(pool.TryPost(1, [&] { ++done; }));
    EXPECT_FALSE(pool.TryPost(1, [&] { ++done; }));
    release.set_value();
    while (done < 2) std::this_thread::yield();
  }
  EXPECT_EQ(done, 2);
}

TEST(WorkPool, OneClientsJobsLeaveAThreadToOthers) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> begun = 0;
  WorkPool pool(2, 100);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(pool.TryPost(1, [&] {
      ++begun;
      released.wait();
    }));
  }
  while (begun == 0) std::this_thread::yield();
  std::promise<void> other;
  ASSERT_TRUE(pool.TryPost(2, [&] { other.set_value(); }));
  other.get_future().wait();
  EXPECT_EQ(begun, 1);
  release.set_value();
  while (begun < 50) std::this_thread::yield();
}

TEST(WorkPool, ClientsTakeTurns) {
  std::promise<void> release;
  std::mutex mutex;
  std::vector<int> order;
  std::atomic<int> done = 0;
  WorkPool pool(1, 100);
  pool.TryPost(3, [&] { release.get_future().wait(); });
  for (const int client : {1, 1, 1, 2, 2}) {
    pool.TryPost(static_cast<ClientId>(client), [&, client] {
      const std::lock_guard lock(mutex);
      order.push_back(client);
      ++done;
    });
  }
  release.set_value();
  while (done < 5) std::this_thread::yield();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1, 2, 1}));
}

TEST(Serve, FindsAllContradictionsBeforeAnythingIsRead) {
  ServeOptions options;
  EXPECT_TRUE(Contradictions(options).empty());
  options.service.scheduler.max_sequences = 500;
  options.service.scheduler.prefix_cache = false;
  options.load.prefix_cache_snapshots = 3;
  options.service.root_path = "llm/";
  options.http.unix_path = std::string(200, 'x');
  options.service.metrics_prefix = "a b";
  options.load.max_model_len = 1;
  EXPECT_EQ(Contradictions(options).size(), 6u);
}

}  // namespace
}  // namespace halfbyte
