#include "server/service.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/page.h"
#include "server/responses.h"
#include "server/version.h"

namespace halfbyte {
namespace {

constexpr int kWorkers = 2;
constexpr int64_t kMoreJobs = 64;
constexpr std::string_view kNoRoute = "none";
constexpr int kClientGone = 499;  // no answer had begun; the number that others use in logs

double SecondsSince(EngineClock::time_point start) {
  return std::chrono::duration<double>(EngineClock::now() - start).count();
}

HttpResponse Plain(std::string_view content_type, std::string body) {
  return {.head = {.fields = {{"Content-Type", std::string(content_type)}}},
          .body = std::move(body)};
}

HttpResponse Page() {
  HttpResponse page = Plain("text/html; charset=utf-8", std::string(kPage));
  page.head.fields.Add("Content-Security-Policy", std::string(kPageSecurityPolicy));
  page.head.fields.Add("X-Frame-Options", "DENY");
  page.head.fields.Add("Cross-Origin-Opener-Policy", "same-origin");
  page.head.fields.Add("Referrer-Policy", "no-referrer");
  return page;
}

HttpResponse OfPool(const ApiResult<JsonAnswer>& answer) {
  if (!answer) return ErrorResponse(answer.error());
  HttpResponse response = JsonResponse(200, answer->body);
  AddNotes(response.head.fields, answer->ignored, std::nullopt, answer->thinking);
  return response;
}

ApiError NoKey() {
  return {.status = 401,
          .code = "invalid_api_key",
          .message = "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"};
}

// What a client wrote, fit for a message or a log.
std::string Printable(std::string_view text) {
  std::string printable(text.substr(0, 128));
  std::ranges::replace_if(
      printable, [](char c) { return c < ' ' || c > '~'; }, '?');
  return printable;
}

ApiError ForeignHost(std::string_view host) {
  return {.status = 403,
          .code = "host_not_allowed",
          .message = fmt::format(
              "this server does not go by the name {0}: call it by its address or as localhost, or "
              "start it with --allowed-hosts {0} (not needed with an API key)",
              Printable(host.substr(0, host.rfind(':'))))};
}

ApiError NoRoute(const HttpRequest& head) {
  return {.status = 404,
          .code = "route_not_found",
          .message = fmt::format("there is no {}; GET /openapi.json lists what there is",
                                 Printable(head.path))};
}

// What a body must be sent as.
std::optional<ApiError> CheckBodyFields(const HttpRequest& head) {
  const auto encoding = head.fields.Find("content-encoding");
  const auto type = head.fields.Find("content-type");
  if (encoding && *encoding != "identity") {
    return ApiError{.status = 415,
                    .code = "unsupported_content_encoding",
                    .message = "a compressed body is not taken; send it without Content-Encoding"};
  }
  if (!type || !IsJsonContentType(*type)) {
    return ApiError{.status = 415,
                    .code = "unsupported_media_type",
                    .message = "the body must come as Content-Type: application/json, in UTF-8"};
  }
  return std::nullopt;
}

}  // namespace

// All that exists once the model is loaded. The engine ends first: it uses the rest.
struct Service::Running {
  ServedModel model;
  OpenAiApi api;
  std::unique_ptr<Engine> engine;
  std::optional<GenerationContext> context;
};

// Counts and logs an answer when it ends, and adds what all answers have.
class Service::TrackedReply : public HttpReply {
 public:
  TrackedReply(Service& service, const HttpRequest& request, const RouteRule& rule)
      : service_(service),
        rule_(rule),
        method_(KnownMethod(request.method)),
        call_(std::make_shared<CallRecord>()) {
    call_->id = request.id;
    call_->route = rule.pattern;
    call_->client = request.peer;
    call_->arrival = request.arrival;
    service.AddCommonFields(request, fields_);
  }

  ~TrackedReply() override {
    reply_.reset();
    service_.metrics_.CountAnswer(rule_.pattern, method_, status_, SecondsSince(call_->arrival));
    if (rule_.generates) {
      service_.log_.Answered(call_, status_, EngineClock::now());
    } else {
      spdlog::debug("request id={} client={} route={} status={}", call_->id, call_->client,
                    call_->route, status_);
    }
  }

  void Run(std::unique_ptr<HttpReply> reply) { reply_ = std::move(reply); }
  const std::shared_ptr<CallRecord>& call() const { return call_; }

  Output Poll() override {
    Output output = reply_->Poll();
    if (output.head) {
      status_ = output.head->status;
      for (const auto& [name, value] : fields_) output.head->fields.Add(name, value);
      output.head->close |= service_.lifecycle_.phase() == Lifecycle::Phase::kDraining;
    }
    return output;
  }

 private:
  Service& service_;
  const RouteRule& rule_;
  const std::string_view method_;
  const std::shared_ptr<CallRecord> call_;
  HttpFields fields_;
  int status_ = kClientGone;
  std::unique_ptr<HttpReply> reply_;
};

Service::Service(ServiceOptions options, ModelInfo announced, std::unique_ptr<ApiKeys> keys)
    : options_(std::move(options)),
      announced_(std::move(announced)),
      openapi_(OpenApiDocument(options_.api, announced_.served_names, options_.overload_status)),
      keys_(std::move(keys)),
      allowed_hosts_(options_.allowed_hosts),
      metrics_(options_.metrics_prefix, announced_.served_names.front()),
      // More than the engine takes would be read in vain.
      pool_(std::make_unique<WorkPool>(
          kWorkers, static_cast<size_t>(options_.max_queued_requests +
                                        options_.scheduler.max_sequences + kMoreJobs))) {}

Service::~Service() {
  pool_.reset();
  // The engine's last reports come to us.
  owned_running_.reset();
}

Status Service::Start(ServedModel model) {
  const EngineOptions engine_options{.scheduler = options_.scheduler,
                                     .max_queued_requests = options_.max_queued_requests,
                                     .eos_ids = model.info.eos_ids,
                                     .processed_logprobs = options_.processed_logprobs,
                                     .pool = model.pool.get()};
  const ModelInfo info = model.info;
  auto running = std::unique_ptr<Running>(
      new Running{.model = std::move(model), .api = OpenAiApi(info, options_.api)});
  HB_ASSIGN_OR_RETURN(running->engine,
                      Engine::Start(std::move(running->model.executor),
                                    running->model.tokenizer.get(), engine_options, this));
  running->context.emplace(GenerationContext{.api = running->api,
                                             .engine = *running->engine,
                                             .log = log_,
                                             .metrics = metrics_,
                                             .overload_status = options_.overload_status,
                                             .ping_interval = options_.sse_ping_interval,
                                             .queue_timeout = options_.queue_timeout,
                                             .request_timeout = options_.request_timeout,
                                             .log_prompts = options_.log_prompts});
  owned_running_ = std::move(running);
  running_ = owned_running_.get();
  lifecycle_.SetReady();
  return {};
}

std::optional<EngineStatistics> Service::Statistics() const {
  const Running* running = running_;
  if (running == nullptr) return std::nullopt;
  return running->engine->Statistics();
}

void Service::Drain() {
  lifecycle_.SetDraining();
  if (const Running* running = running_) running->engine->Drain();
}

void Service::CancelAll() {
  if (const Running* running = running_) running->engine->CancelAll(CancelCause::kShutdown);
}

void Service::OnFinished(const RequestReport& report) {
  metrics_.OnFinished(report);
  log_.Finished(report);
}

std::optional<RouteMatch> Service::Find(const HttpRequest& request) const {
  std::string_view path = request.path;
  const std::string& root = options_.root_path;
  if (!root.empty() && path.starts_with(root) &&
      (path.size() == root.size() || path[root.size()] == '/')) {
    path.remove_prefix(root.size());
  }
  return FindRoute(path.empty() ? "/" : path);
}

std::optional<HttpResponse> Service::CheckHead(const HttpRequest& head) {
  auto refusal = Refusal(head);
  if (!refusal) return std::nullopt;
  const auto match = Find(head);
  metrics_.CountAnswer(match ? match->rule->pattern : kNoRoute, KnownMethod(head.method),
                       refusal->head.status, SecondsSince(head.arrival));
  spdlog::debug("request id={} client={} refused with status={}", head.id, head.peer,
                refusal->head.status);
  AddCommonFields(head, refusal->head.fields);
  return refusal;
}

std::optional<HttpResponse> Service::Refusal(const HttpRequest& head) {
  const auto match = Find(head);
  const RouteRule* rule = match ? match->rule : nullptr;
  const bool open = rule != nullptr && rule->open;
  if (!open && !MayCall(head)) {
    return ErrorResponse(ForeignHost(*head.fields.Find("host")));
  }
  if (head.method == "OPTIONS" && (rule != nullptr || head.path == "*")) {
    return Preflight(head, rule);
  }
  if (!open && !keys_->Admit(head.fields)) {
    return RefuseKey(head, rule != nullptr ? rule->pattern : kNoRoute);
  }
  if (rule == nullptr) return ErrorResponse(NoRoute(head));
  const bool reads = head.method == "GET" || head.method == "HEAD";
  if (rule->posts ? head.method != "POST" : !reads) {
    HttpResponse response =
        ErrorResponse({.status = 405,
                       .code = "method_not_allowed",
                       .message = fmt::format("{} takes {} only", rule->pattern, rule->allow())});
    response.head.fields.Add("Allow", std::string(rule->allow()));
    return response;
  }
  if (rule->posts) {
    if (const auto error = CheckBodyFields(head)) return ErrorResponse(*error);
  }
  if (const auto error = Unavailable(*rule)) {
    if (rule->generates) metrics_.CountRejection(error->code);
    HttpResponse response = ErrorResponse(*error);
    response.head.close = error->code == "draining";
    return response;
  }
  return std::nullopt;
}

// With keys, the key decides. Browsers, which are what strange names come from, speak TCP and
// always send a Host.
bool Service::MayCall(const HttpRequest& head) const {
  const auto host = head.fields.Find("host");
  return keys_->required() || !host || head.peer == "unix" || allowed_hosts_.Admit(*host);
}

HttpResponse Service::RefuseKey(const HttpRequest& head, std::string_view pattern) {
  const std::string_view reason = ApiKeys::Brought(head.fields) ? "wrong" : "missing";
  metrics_.CountRefusedKey(reason);
  const RefusedKeys::Verdict verdict = refused_keys_.Add(head.peer, EngineClock::now());
  if (verdict.log) {
    spdlog::info("key refused: id={} client={} route={} status=401 key={}{}", head.id, head.peer,
                 pattern, reason,
                 verdict.not_logged > 0
                     ? fmt::format(" ({} more from there since the last line)", verdict.not_logged)
                     : "");
  }
  HttpResponse response = ErrorResponse(NoKey());
  response.not_before = verdict.answer_at;
  response.head.fields.Add("WWW-Authenticate", "Bearer realm=\"halfbyte\"");
  response.head.fields.Add("WWW-Authenticate", "Basic realm=\"halfbyte\", charset=\"UTF-8\"");
  return response;
}

std::optional<ApiError> Service::Unavailable(const RouteRule& rule) const {
  const Lifecycle::Phase phase = lifecycle_.phase();
  if (rule.needs_model && running_ == nullptr) {
    const double left = lifecycle_.progress().seconds_left();
    return ApiError{
        .status = 503,
        .code = "model_loading",
        .message = "the model is being loaded; GET /ready says how far it is",
        .retry_after_seconds = static_cast<int64_t>(std::clamp(std::ceil(left), 1., 60.))};
  }
  if (rule.needs_model && !MemoryReserve::Refill()) return OutOfMemory();
  if (rule.generates && phase == Lifecycle::Phase::kDraining) {
    return ApiError{.status = 503,
                    .code = "draining",
                    .message = "the server is shutting down and takes no new requests",
                    .retry_after_seconds = 5};
  }
  return std::nullopt;
}

const std::string* Service::AllowedOrigin(const HttpRequest& request) const {
  const auto origin = request.fields.Find("origin");
  if (!origin) return nullptr;
  const auto allowed = std::ranges::find_if(
      options_.allowed_origins, [&](const std::string& o) { return o == "*" || o == *origin; });
  return allowed == options_.allowed_origins.end() ? nullptr : &*allowed;
}

// No browser is to guess at an answer's type, nor to hand it to a page of another origin that did
// not ask as an allowed one.
void Service::AddCommonFields(const HttpRequest& request, HttpFields& fields) const {
  fields.Add("X-Content-Type-Options", "nosniff");
  fields.Add("Cross-Origin-Resource-Policy", "same-origin");
  if (options_.allowed_origins.empty()) return;
  fields.Add("Vary", "Origin");
  const std::string* origin = AllowedOrigin(request);
  if (origin == nullptr) return;
  fields.Add("Access-Control-Allow-Origin", *origin);
  fields.Add("Access-Control-Expose-Headers",
             "x-request-id, x-halfbyte-ignored, x-halfbyte-thinking, x-halfbyte-clamped, "
             "Retry-After");
}

// Browsers ask before they let a page of another origin call; AddCommonFields says whether it may.
// An allowed one may send whatever it asks for: client libraries have header fields of their own.
HttpResponse Service::Preflight(const HttpRequest& head, const RouteRule* rule) const {
  const std::string allow(rule != nullptr ? rule->allow() : "GET, HEAD, POST");
  HttpResponse response{.head = {.status = 204, .fields = {{"Allow", allow + ", OPTIONS"}}}};
  if (AllowedOrigin(head) == nullptr) return response;
  HttpFields& fields = response.head.fields;
  fields.Add("Access-Control-Allow-Methods", allow);
  if (const auto asked = head.fields.Find("access-control-request-headers")) {
    fields.Add("Access-Control-Allow-Headers", std::string(*asked));
  }
  if (head.fields.Find("access-control-request-private-network") == "true") {
    fields.Add("Access-Control-Allow-Private-Network", "true");
  }
  fields.Add("Access-Control-Max-Age", "7200");
  fields.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers");
  return response;
}

std::unique_ptr<HttpReply> Service::Handle(HttpRequest request, Wake wake) {
  const RouteMatch match = *Find(request);  // CheckHead has seen to that
  auto tracked = std::make_unique<TrackedReply>(*this, request, *match.rule);
  tracked->Run(Dispatch(match, std::move(request), std::move(wake), tracked->call()));
  return tracked;
}

std::unique_ptr<HttpReply> Service::Dispatch(const RouteMatch& match, HttpRequest request,
                                             Wake wake, const std::shared_ptr<CallRecord>& call) {
  const RouteRule& rule = *match.rule;
  const ClientId client = ClientOf(request);
  if (rule.generates) {
    const Running* running = running_;
    return Generate(*running->context, *pool_, client, rule.id == RouteId::kChat,
                    std::move(request), std::move(wake), call);
  }
  const bool quick = !rule.needs_model && rule.id != RouteId::kMetrics;
  if (quick) return ReplyWith(AnswerNow(match));
  auto reply = AnswerOnPool(*pool_, client, WorkOf(rule.id, std::move(request)), std::move(wake));
  if (reply == nullptr) return ReplyWith(ErrorResponse(PoolIsFull(options_.overload_status)));
  return reply;
}

// Its key, else its address.
ClientId Service::ClientOf(const HttpRequest& request) const {
  const auto key = keys_->required() ? keys_->ValidKey(request.fields) : std::nullopt;
  return std::hash<std::string>()(key ? "key " + *key : ClientAddress(request.peer));
}

std::function<HttpResponse(std::stop_token)> Service::WorkOf(RouteId route, HttpRequest request) {
  const auto shared = std::make_shared<const HttpRequest>(std::move(request));
  return [this, route, shared](const std::stop_token& gone) {
    if (route == RouteId::kMetrics) {
      return Plain("text/plain; version=0.0.4; charset=utf-8", MetricsText());
    }
    const OpenAiApi& api = running_.load()->api;
    switch (route) {
      case RouteId::kTokenize:
        return OfPool(api.Tokenize(shared->body, gone));
      case RouteId::kDetokenize:
        return OfPool(api.Detokenize(shared->body));
      case RouteId::kTokenizerInfo:
        return OfPool(api.TokenizerInfo());
      default:
        return OfPool(api.Render(shared->body, gone));
    }
  };
}

HttpResponse Service::AnswerNow(const RouteMatch& match) {
  const Running* running = running_;
  const ModelInfo& model = running != nullptr ? running->api.model() : announced_;
  switch (match.rule->id) {
    case RouteId::kLive:
      return lifecycle_.Live(EngineClock::now());
    case RouteId::kReady:
      return lifecycle_.Ready();
    case RouteId::kModels:
      return JsonResponse(200, ModelsBody(model));
    case RouteId::kModel: {
      const auto body = ModelBody(model, match.model_id);
      return body ? JsonResponse(200, *body) : ErrorResponse(body.error());
    }
    case RouteId::kVersion:
      return JsonResponse(200, VersionBody(options_.device));
    case RouteId::kOpenApi:
      return JsonResponse(200, openapi_);
    default:
      return Page();
  }
}

std::string Service::MetricsText() {
  const bool loading = running_ == nullptr;
  return metrics_.Text(
      {.load_progress = loading ? lifecycle_.progress().share() : 1, .engine = Statistics()});
}

HttpResponse Service::Answer(const HttpFault& fault, const HttpRequest& request) {
  metrics_.CountAnswer(kNoRoute, KnownMethod(request.method), fault.status, 0);
  spdlog::debug("request id={} client={} refused with status={}: {}", request.id, request.peer,
                fault.status, fault.message);
  HttpResponse response = ErrorResponse({.status = fault.status,
                                         .code = fault.code,
                                         .message = fault.message,
                                         .retry_after_seconds = fault.status == 503 ? 1 : 0});
  AddCommonFields(request, response.head.fields);
  return response;
}

}  // namespace halfbyte
