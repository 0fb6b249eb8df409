#include "server/service.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>

#include "base/json.h"
#include "server/service_test_client.h"

namespace halfbyte {
namespace {

using test::Exchange;
using test::Get;
using test::Post;

constexpr char kCompletions[] = "/v1/completions";
constexpr char kChat[] = "/v1/chat/completions";

ServedModelOptions Fake() {
  return {.directory = std::filesystem::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4",
          .fake = FakeModel(),
          .max_num_seqs = 4,
          .served_names = {"tiny", "other"}};
}

std::unique_ptr<Service> Announced(ServiceOptions options = {},
                                   std::vector<std::string> keys = {}) {
  options.scheduler.max_sequences = 4;
  return std::make_unique<Service>(std::move(options), Announce(Fake()),
                                   *ApiKeys::Create(std::move(keys), {}));
}

std::unique_ptr<Service> Started(ServiceOptions options = {}, FakeModel fake = {},
                                 std::vector<std::string> keys = {}) {
  auto service = Announced(std::move(options), std::move(keys));
  ServedModelOptions load = Fake();
  load.fake = fake;
  auto model = LoadServedModel(load, [](const ProgressReport&) {});
  EXPECT_TRUE(model) << model.error().message;
  const Status started = service->Start(*std::move(model));
  EXPECT_TRUE(started) << started.error().message;
  return service;
}

std::string Ask(int max_tokens, bool stream = false) {
  return Json{{"model", "tiny"},
              {"prompt", "The"},
              {"max_tokens", max_tokens},
              {"temperature", 0},
              {"stream", stream}}
      .dump();
}

std::string CodeOf(const Exchange& exchange) {
  return Json::parse(exchange.body())["error"]["code"].get<std::string>();
}

// The texts of a stream's chunks, joined.
std::string TextOfStream(const std::string& body) {
  std::string text;
  constexpr std::string_view kData = "data: ";
  for (size_t begin = body.find(kData); begin != std::string::npos;
       begin = body.find(kData, begin + 1)) {
    const std::string line = body.substr(begin + kData.size(), body.find('\n', begin) - begin - 6);
    if (line == "[DONE]") continue;
    const Json chunk = Json::parse(line);
    for (const Json& choice : chunk["choices"]) text += choice.value("text", "");
  }
  return text;
}

bool WaitForIdle(const Service& service) {
  for (int i = 0; i < 1000; ++i) {
    const EngineStatistics now = *service.Statistics();
    if (now.unfinished_requests == 0 && now.scheduler.running == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Service, SaysThatItLoadsAndRefusesToGenerateUntilThen) {
  const auto service = Announced();
  service->lifecycle().SetProgress(
      {.label = "load weights", .done = 42, .total = 100, .seconds = 21});
  Exchange ready(*service, Get("/ready"));
  EXPECT_EQ(ready.status(), 503);
  EXPECT_EQ(ready.body(),
            R"({"status":"loading","phase":"load weights","progress":0.42,"eta_s":29})");
  EXPECT_EQ(Exchange(*service, Get("/live")).status(), 200);
  EXPECT_EQ(Exchange(*service, Get("/")).status(), 200);
  EXPECT_EQ(Exchange(*service, Get("/v1/models")).status(), 200);
  Exchange metrics(*service, Get("/metrics"));
  ASSERT_TRUE(metrics.Run());
  EXPECT_NE(metrics.body().find("halfbyte:load_progress_ratio"), std::string::npos);
  Exchange refused(*service, Post(kCompletions, Ask(1)));
  EXPECT_EQ(refused.status(), 503);
  EXPECT_EQ(CodeOf(refused), "model_loading");
  EXPECT_EQ(refused.field("Retry-After"), "29");
}

TEST(Service, StreamsTheTextOfTheWholeAnswer) {
  const auto service = Started();
  EXPECT_EQ(Exchange(*service, Get("/ready")).body(), R"({"status":"ready"})");
  Exchange whole(*service, Post(kCompletions, Ask(20)));
  ASSERT_TRUE(whole.Run());
  ASSERT_EQ(whole.status(), 200) << whole.body();
  const Json body = Json::parse(whole.body());
  EXPECT_EQ(body["usage"]["completion_tokens"], 20);
  EXPECT_EQ(body["id"], "cmpl-test");
  Exchange stream(*service, Post(kCompletions, Ask(20, /*stream=*/true)));
  ASSERT_TRUE(stream.Run());
  EXPECT_EQ(stream.status(), 200);
  EXPECT_EQ(stream.field("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(stream.body().ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(TextOfStream(stream.body()), body["choices"][0]["text"].get<std::string>());
}

TEST(Service, LongAnswersAreWrittenElsewhereAndSayTheSame) {
  const auto service = Started();
  const auto ask = [&](int logprobs) {
    Json body = Json::parse(Ask(1200));
    if (logprobs > 0) body["logprobs"] = logprobs;
    body["sparkle"] = 1;
    return Post(kCompletions, body.dump());
  };
  Exchange brief(*service, ask(0)), full(*service, ask(20));
  ASSERT_TRUE(brief.Run() && full.Run());
  EXPECT_LT(brief.body().size(), 10'000u);
  EXPECT_GT(full.body().size(), 300'000u);
  for (const Exchange* each : {&brief, &full}) {
    EXPECT_EQ(each->status(), 200);
    EXPECT_EQ(each->field("x-halfbyte-ignored"), "sparkle");
  }
  const Json choice = Json::parse(full.body())["choices"][0];
  EXPECT_EQ(choice["text"], Json::parse(brief.body())["choices"][0]["text"]);
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 1200u);
  for (int i = 0; i < 5; ++i) {  // whoever leaves meanwhile
    Exchange leaves(*service, ask(20));
    leaves.RunUntil([&] { return service->Statistics()->unfinished_requests == 0; });
    leaves.Leave();
  }
  EXPECT_TRUE(WaitForIdle(*service));
}

TEST(Service, NamesIgnoredFieldsAndTheThinkingUsed) {
  const auto service = Started();
  Exchange chat(*service, Post(kChat, R"({"messages": [{"role": "user", "content": "a"}],
                                          "max_tokens": 2, "sparkle": 1, "thinking": true})"));
  ASSERT_TRUE(chat.Run());
  EXPECT_EQ(chat.status(), 200) << chat.body();
  EXPECT_EQ(chat.field("x-halfbyte-ignored"), "sparkle");
  EXPECT_EQ(chat.field("x-halfbyte-thinking"), "on; effort=high");
}

TEST(Service, AnswersTokenizeDetokenizeAndRender) {
  const auto service = Started();
  Exchange tokens(*service, Post("/tokenize", R"({"prompt": "The number"})"));
  ASSERT_TRUE(tokens.Run());
  ASSERT_EQ(tokens.status(), 200) << tokens.body();
  const Json ids = Json::parse(tokens.body())["tokens"];
  Exchange text(*service, Post("/detokenize", Json{{"tokens", ids}}.dump()));
  ASSERT_TRUE(text.Run());
  EXPECT_EQ(Json::parse(text.body())["prompt"], "The number");
  for (const char* path : {"/render", "/v1/completions/render", "/v1/chat/completions/render"}) {
    Exchange rendered(*service, Post(path, Ask(1)));
    ASSERT_TRUE(rendered.Run());
    EXPECT_EQ(Json::parse(rendered.body())["prompt"], "The") << path;
  }
}

TEST(Service, RefusesBeforeTheBodyIsRead) {
  const auto service = Started();
  Exchange unknown(*service, Get("/v2/models"));
  EXPECT_EQ(unknown.status(), 404);
  EXPECT_EQ(CodeOf(unknown), "route_not_found");
  Exchange method(*service, Get(kCompletions));
  EXPECT_EQ(method.status(), 405);
  EXPECT_EQ(method.field("Allow"), "POST");
  HttpRequest form = Post(kCompletions, Ask(1));
  form.fields = {{"Content-Type", "application/x-www-form-urlencoded"}};
  EXPECT_EQ(Exchange(*service, form).status(), 415);
  form.fields = {{"Content-Type", "application/json"}, {"Content-Encoding", "gzip"}};
  EXPECT_EQ(Exchange(*service, form).status(), 415);
  EXPECT_EQ(Exchange(*service, Get("/v1/models/none")).status(), 404);
  EXPECT_EQ(Exchange(*service, Get("/v1/models/other")).status(), 200);
}

TEST(Service, AnswersWithAndWithoutItsRootPath) {
  const auto service = Announced({.root_path = "/llm"});
  EXPECT_EQ(Exchange(*service, Get("/llm/live")).status(), 200);
  EXPECT_EQ(Exchange(*service, Get("/live")).status(), 200);
  EXPECT_EQ(Exchange(*service, Get("/llm")).status(), 200);
  EXPECT_EQ(Exchange(*service, Get("/llmlive")).status(), 404);
}

TEST(Service, AsksForAKeyEverywhereButForHealth) {
  const auto service = Started({}, {}, {"secret"});
  for (const char* path : {"/live", "/ready", "/health"}) {
    EXPECT_EQ(Exchange(*service, Get(path)).status(), 200) << path;
  }
  for (const char* path : {"/", "/metrics", "/openapi.json", "/version", "/v1/models", "/none"}) {
    Exchange refused(*service, Get(path));
    EXPECT_EQ(refused.status(), 401) << path;
    EXPECT_EQ(refused.field("WWW-Authenticate"), "Bearer realm=\"halfbyte\"");
  }
  Exchange refused(*service, Post(kCompletions, Ask(1)));
  EXPECT_EQ(CodeOf(refused), "invalid_api_key");
  EXPECT_EQ(Exchange(*service, Get("/v1/models", {{"x-api-key", "secret"}})).status(), 200);
}

TEST(Service, AWrongKeyIsCountedAndARightOneNeverWaits) {
  const auto service = Announced({}, {"secret"});
  const auto refused_in_time = [&] {
    HttpRequest request = Get("/v1/models", {{"x-api-key", "guess"}});
    request.peer = "10.0.0.1:5";
    const auto refusal = service->CheckHead(request);
    EXPECT_EQ(refusal->head.status, 401);
    return refusal->not_before <= EngineClock::now();
  };
  int in_time = 0;
  for (int i = 0; i < 100; ++i) in_time += refused_in_time();
  EXPECT_LT(in_time, 100);
  HttpRequest right = Get("/v1/models", {{"x-api-key", "secret"}});
  right.peer = "10.0.0.1:5";
  EXPECT_FALSE(service->CheckHead(right));
  Exchange metrics(*service, Get("/metrics", {{"x-api-key", "secret"}}));
  ASSERT_TRUE(metrics.Run());
  EXPECT_NE(
      metrics.body().find(R"(refused_keys_total{engine="0",model_name="tiny",reason="wrong"} 100)"),
      std::string::npos);
}

TEST(Service, IsCalledByItsAddressLocalhostOrANameItWasGiven) {
  const auto service = Announced({.allowed_hosts = {"box"}});
  const auto status = [&](const char* path, const char* host, const char* peer = "127.0.0.1:9") {
    HttpRequest request = Get(path, {{"Host", host}});
    request.peer = peer;
    return Exchange(*service, request).status();
  };
  for (const char* host : {"127.0.0.1:8000", "[::1]:8000", "localhost:8000", "box:8000"}) {
    EXPECT_EQ(status("/v1/models", host), 200) << host;
  }
  for (const char* path : {"/", "/v1/models", "/metrics", "/openapi.json", "/none"}) {
    EXPECT_EQ(status(path, "evil.test:8000"), 403) << path;
  }
  EXPECT_EQ(status("/live", "evil.test:8000"), 200);  // tells a load balancer, whatever it calls us
  EXPECT_EQ(status("/v1/models", "evil.test", "unix"), 200);       // no page reaches a unix socket
  EXPECT_EQ(Exchange(*service, Get("/v1/models")).status(), 200);  // HTTP/1.0, no browser
  Exchange refused(*service, Post(kChat, "{}", {{"Host", "evil.test:8000"}}));
  EXPECT_EQ(CodeOf(refused), "host_not_allowed");
  EXPECT_NE(refused.body().find("--allowed-hosts evil.test "), std::string::npos);
  HttpRequest preflight = Get(kChat, {{"Host", "evil.test"}, {"Origin", "http://evil.test"}});
  preflight.method = "OPTIONS";
  EXPECT_EQ(Exchange(*service, preflight).status(), 403);
}

TEST(Service, WithAKeyTheKeyDecidesAndNotTheName) {
  const auto service = Announced({}, {"secret"});
  EXPECT_EQ(Exchange(*service, Get("/v1/models", {{"Host", "any.test"}, {"x-api-key", "secret"}}))
                .status(),
            200);
  EXPECT_EQ(Exchange(*service, Get("/v1/models", {{"Host", "any.test"}})).status(), 401);
}

TEST(Service, LetsPagesOfAllowedOriginsIn) {
  const auto service = Announced({.allowed_origins = {"https://a.example"}}, {"secret"});
  constexpr char kAsked[] = "authorization,content-type,x-stainless-os,anthropic-version";
  HttpRequest preflight = Get(kChat, {{"Origin", "https://a.example"},
                                      {"Access-Control-Request-Method", "POST"},
                                      {"Access-Control-Request-Headers", kAsked}});
  preflight.method = "OPTIONS";
  Exchange allowed(*service, preflight);
  EXPECT_EQ(allowed.status(), 204);
  EXPECT_EQ(allowed.field("Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(allowed.field("Access-Control-Allow-Methods"), "POST");
  EXPECT_EQ(allowed.field("Access-Control-Allow-Headers"), kAsked);
  EXPECT_EQ(allowed.field("Access-Control-Max-Age"), "7200");
  EXPECT_EQ(allowed.field("Vary"), "Access-Control-Request-Method, Access-Control-Request-Headers");
  EXPECT_EQ(allowed.field("Access-Control-Allow-Private-Network"), "");
  preflight.fields.Add("Access-Control-Request-Private-Network", "true");
  EXPECT_EQ(Exchange(*service, preflight).field("Access-Control-Allow-Private-Network"), "true");
  preflight.fields = {{"Origin", "https://b.example"}, {"Access-Control-Request-Headers", kAsked}};
  Exchange other(*service, preflight);
  EXPECT_EQ(other.field("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(other.field("Access-Control-Allow-Headers"), "");
  EXPECT_EQ(other.field("Vary"), "Origin");  // a cache must not give it to https://a.example
  Exchange refused(*service, Get("/v1/models", {{"Origin", "https://a.example"}}));
  EXPECT_EQ(refused.status(), 401);
  EXPECT_EQ(refused.field("Access-Control-Allow-Origin"), "https://a.example");
  for (const char* name : {"x-halfbyte-ignored", "x-halfbyte-thinking", "x-halfbyte-clamped",
                           "x-request-id", "Retry-After"}) {
    EXPECT_NE(refused.field("Access-Control-Expose-Headers").find(name), std::string::npos) << name;
  }
}

TEST(Service, ThePageMayUseNothingButItselfAndItsServerAndStandsInNoFrame) {
  const auto service = Announced();
  Exchange page(*service, Get("/"));
  EXPECT_LT(page.body().size(), size_t{64} << 10);
  EXPECT_TRUE(page.field("Content-Security-Policy").starts_with("default-src 'none'"));
  EXPECT_EQ(page.field("Content-Security-Policy").find("unsafe"), std::string::npos);
  EXPECT_NE(page.field("Content-Security-Policy").find("frame-ancestors 'none'"),
            std::string::npos);
  EXPECT_EQ(page.field("X-Frame-Options"), "DENY");
  EXPECT_EQ(page.field("Referrer-Policy"), "no-referrer");
}

TEST(Service, NoAnswerIsGuessedAtOrHandedToAPageOfAnotherOrigin) {
  const auto service = Announced();
  const HttpResponse fault = service->Answer({.status = 400, .code = "bad_request"}, Get("/"));
  EXPECT_EQ(test::FieldOf(fault.head, "X-Content-Type-Options"), "nosniff");
  for (const char* path : {"/", "/live", "/v1/models", "/none", "/openapi.json"}) {
    Exchange exchange(*service, Get(path));
    EXPECT_EQ(exchange.field("X-Content-Type-Options"), "nosniff") << path;
    EXPECT_EQ(exchange.field("Cross-Origin-Resource-Policy"), "same-origin") << path;
    EXPECT_EQ(exchange.field("Vary"), "") << path;
  }
}

TEST(Service, AClientThatLeavesStopsItsWork) {
  const auto service = Started({}, {.step_seconds = 0.002});
  Exchange stream(*service, Post(kCompletions, Ask(4000, /*stream=*/true)));
  ASSERT_TRUE(stream.RunUntil([&] { return !stream.body().empty(); }));
  Exchange whole(*service, Post(kCompletions, Ask(4000)));
  stream.Leave();
  whole.Leave();
  ASSERT_TRUE(WaitForIdle(*service));
  EXPECT_EQ(service->Statistics()->scheduler.context_blocks_referenced, 0);
  Exchange metrics(*service, Get("/metrics"));
  ASSERT_TRUE(metrics.Run());
  EXPECT_NE(metrics.body().find("finished_reason=\"stop\"} 0"), std::string::npos);
}

TEST(Service, AnswersAFullQueueAtOnceWithATimeToRetry) {
  const auto service =
      Started({.overload_status = 503, .max_queued_requests = 1}, {.step_seconds = 0.01});
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int i = 0; i < 40; ++i) {
    exchanges.push_back(std::make_unique<Exchange>(*service, Post(kCompletions, Ask(10))));
  }
  int answered = 0, refused = 0;
  for (const auto& exchange : exchanges) {
    ASSERT_TRUE(exchange->Run());
    answered += exchange->status() == 200;
    if (exchange->status() != 503) continue;
    ++refused;
    EXPECT_EQ(CodeOf(*exchange), "queue_full");
    EXPECT_GE(std::stoi(exchange->field("Retry-After")), 1);
  }
  EXPECT_EQ(answered + refused, 40);
  Exchange metrics(*service, Get("/metrics"));
  ASSERT_TRUE(metrics.Run());
  EXPECT_NE(metrics.body().find(fmt::format(R"(reason="queue_full"}} {})", refused)),
            std::string::npos);
  EXPECT_GE(answered, 5);
  EXPECT_GE(refused, 1);
}

TEST(Service, ARequestThatWaitsTooLongGetsItsStatusEvenAsAStream) {
  const auto service = Started({.queue_timeout = std::chrono::duration<double>(0)});
  Exchange waiting(*service, Post(kCompletions, Ask(10, /*stream=*/true)));
  ASSERT_TRUE(waiting.Run());
  EXPECT_EQ(waiting.status(), 503);
  EXPECT_EQ(CodeOf(waiting), "queue_timeout");
}

TEST(Service, PingsASilentStream) {
  const auto service =
      Started({.sse_ping_interval = std::chrono::duration<double>(0.05)}, {.step_seconds = 0.3});
  Exchange stream(*service, Post(kCompletions, Ask(3, /*stream=*/true)));
  ASSERT_TRUE(stream.Run());
  EXPECT_NE(stream.body().find(": ping\n\n"), std::string::npos);
}

TEST(Service, DrainsWhatRunsAndRefusesTheRest) {
  const auto service = Started({}, {.step_seconds = 0.005});
  Exchange stream(*service, Post(kCompletions, Ask(20, /*stream=*/true)));
  ASSERT_TRUE(stream.RunUntil([&] { return stream.status() != 0; }));
  service->Drain();
  EXPECT_EQ(Exchange(*service, Get("/ready")).body(), R"({"status":"draining"})");
  EXPECT_EQ(Exchange(*service, Get("/live")).status(), 200);
  Exchange refused(*service, Post(kCompletions, Ask(1)));
  EXPECT_EQ(refused.status(), 503);
  EXPECT_EQ(CodeOf(refused), "draining");
  EXPECT_TRUE(refused.closes());
  ASSERT_TRUE(stream.Run());
  EXPECT_EQ(stream.body().find("\"error\""), std::string::npos);
}

TEST(Service, ACutDrainEndsStreamsWithAnError) {
  const auto service = Started({}, {.step_seconds = 0.005});
  Exchange stream(*service, Post(kCompletions, Ask(4000, /*stream=*/true)));
  ASSERT_TRUE(stream.RunUntil([&] { return stream.status() != 0; }));
  service->Drain();
  service->CancelAll();
  ASSERT_TRUE(stream.Run());
  EXPECT_NE(stream.body().find("\"error\""), std::string::npos);
  EXPECT_TRUE(stream.body().ends_with("data: [DONE]\n\n"));
}

TEST(Service, ADeadEngineIsToldToAllAndSeenByLive) {
  const auto service = Started({}, {.step_seconds = 0.005, .fail_at_step = 5});
  Exchange stream(*service, Post(kCompletions, Ask(100, /*stream=*/true)));
  Exchange whole(*service, Post(kCompletions, Ask(100)));
  ASSERT_TRUE(stream.Run());
  ASSERT_TRUE(whole.Run());
  EXPECT_NE(stream.body().find("engine_dead"), std::string::npos);
  EXPECT_EQ(whole.status(), 503);
  EXPECT_EQ(CodeOf(whole), "engine_dead");
  while (!service->Statistics()->dead) std::this_thread::yield();
  service->lifecycle().Watch(*service->Statistics(), EngineClock::now());
  EXPECT_EQ(Exchange(*service, Get("/live")).status(), 503);
  Exchange after(*service, Post(kCompletions, Ask(1)));
  ASSERT_TRUE(after.Run());
  EXPECT_EQ(CodeOf(after), "engine_dead");
}

TEST(Service, ManyClientsComeAndGo) {
  const auto service = Started({.max_queued_requests = 1000});
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 30; ++i) {
        Exchange exchange(*service, Post(kCompletions, Ask(1 + i, i % 2 == 0)));
        if ((i + c) % 3 == 0) {
          exchange.RunUntil([&] { return exchange.body().size() > 100; });
          exchange.Leave();
        } else {
          EXPECT_TRUE(exchange.Run());
          EXPECT_EQ(exchange.status(), 200);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(WaitForIdle(*service));
}

}  // namespace
}  // namespace halfbyte
