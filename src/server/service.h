// What the server answers: routes, keys, CORS, states; everything between HTTP and the engine
// (server.md §2). Knows no sockets and no signals: serve.h adds these.
//
//   Service service(options, Announce(load), std::move(keys));   // answers from now on: "loading"
//   ... HttpServer::Start(http, &service) ...
//   service.Start(std::move(model));                             // generates from now on
//   service.Drain(); ... service.unfinished() == 0 ...
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "http/http.h"
#include "openai/api.h"
#include "server/allowed_hosts.h"
#include "server/api_keys.h"
#include "server/generation.h"
#include "server/lifecycle.h"
#include "server/load_model.h"
#include "server/metrics.h"
#include "server/refused_keys.h"
#include "server/request_log.h"
#include "server/routes.h"
#include "server/work_pool.h"

namespace halfbyte {

struct ServiceOptions {
  std::string root_path;  // "/api" or empty; paths are answered with and without it
  std::vector<std::string> allowed_origins;  // "*": all
  std::vector<std::string> allowed_hosts;    // as AllowedHosts takes them; not asked with keys
  ApiOptions api;
  std::string metrics_prefix = "halfbyte";
  std::string device = "cpu";  // as /version tells it
  int overload_status = 429;
  std::chrono::duration<double> sse_ping_interval{15};
  std::optional<std::chrono::duration<double>> queue_timeout;
  std::optional<std::chrono::duration<double>> request_timeout;
  bool log_prompts = false;

  SchedulerOptions scheduler;
  int64_t max_queued_requests = 256;
  bool processed_logprobs = false;
};

class Service : public HttpHandler, private EngineObserver {
 public:
  Service(ServiceOptions options, ModelInfo announced, std::unique_ptr<ApiKeys> keys);
  // No transport may call any more, and no reply be left.
  ~Service() override;

  // Once, with the model: the engine starts. Errors: those of Engine::Start.
  Status Start(ServedModel model);

  Lifecycle& lifecycle() { return lifecycle_; }
  ApiKeys& keys() { return *keys_; }
  // Once started.
  std::optional<EngineStatistics> Statistics() const;
  // New requests are refused, running ones go on.
  void Drain();
  // What still runs ends with an error.
  void CancelAll();

  // HttpHandler.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override;
  std::unique_ptr<HttpReply> Handle(HttpRequest request, Wake wake) override;
  HttpResponse Answer(const HttpFault& fault, const HttpRequest& request) override;

 private:
  struct Running;
  class TrackedReply;

  void OnStep(const StepReport& step) override { metrics_.OnStep(step); }
  void OnFinished(const RequestReport& report) override;

  std::optional<RouteMatch> Find(const HttpRequest& request) const;
  std::optional<HttpResponse> Refusal(const HttpRequest& head);
  std::optional<ApiError> Unavailable(const RouteRule& rule) const;
  HttpResponse Preflight(const HttpRequest& head, const RouteRule* rule) const;
  bool MayCall(const HttpRequest& head) const;
  HttpResponse RefuseKey(const HttpRequest& head, std::string_view pattern);
  void AddCommonFields(const HttpRequest& request, HttpFields& fields) const;
  const std::string* AllowedOrigin(const HttpRequest& request) const;
  std::unique_ptr<HttpReply> Dispatch(const RouteMatch& match, HttpRequest request, Wake wake,
                                      const std::shared_ptr<CallRecord>& call);
  ClientId ClientOf(const HttpRequest& request) const;
  // What takes too long on an IO thread.
  std::function<HttpResponse(std::stop_token)> WorkOf(RouteId route, HttpRequest request);
  HttpResponse AnswerNow(const RouteMatch& match);
  std::string MetricsText();

  const ServiceOptions options_;
  const ModelInfo announced_;
  const std::string openapi_;
  const std::unique_ptr<ApiKeys> keys_;
  const AllowedHosts allowed_hosts_;
  RefusedKeys refused_keys_;
  Lifecycle lifecycle_;
  Metrics metrics_;
  RequestLog log_;

  std::unique_ptr<Running> owned_running_;
  std::atomic<Running*> running_ = nullptr;  // set once
  std::unique_ptr<WorkPool> pool_;           // last: its jobs use everything else
};

}  // namespace halfbyte
