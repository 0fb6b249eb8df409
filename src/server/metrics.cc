#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>

#include "base/log.h"
#include "server/process_metrics.h"
#include "server/version.h"

namespace halfbyte {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Buckets = Histogram::BucketBoundaries;

// 1, 2, 5, 10, ... times `first`, up to `last`.
Buckets OneTwoFive(double first, double last) {
  Buckets buckets;
  for (double decade = first; decade <= last; decade *= 10) {
    for (const double factor : {1., 2., 5.}) {
      if (decade * factor <= last) buckets.push_back(decade * factor);
    }
  }
  return buckets;
}

Buckets Times() { return OneTwoFive(0.001, 2000); }
Buckets Tokens() { return OneTwoFive(1, 2e6); }

double Seconds(EngineClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// One word for a request of several choices: the worst.
FinishReason Outcome(const RequestReport& request) {
  FinishReason worst = FinishReason::kStop;
  for (const Finish& finish : request.finishes) worst = std::max(worst, finish.reason);
  return worst;
}

}  // namespace

struct Metrics::State {
  State(std::string_view prefix_word, const std::string& model)
      : prefix(std::string(prefix_word) + ":"), labels{{"model_name", model}, {"engine", "0"}} {}

  Family<Counter>& Counters(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter()
        .Name(prefix + name)
        .Help(help)
        .Labels(labels)
        .Register(registry);
  }
  Family<Gauge>& Gauges(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge()
        .Name(prefix + name)
        .Help(help)
        .Labels(labels)
        .Register(registry);
  }
  Histogram& OneHistogram(const std::string& name, const std::string& help, Buckets buckets) {
    return prometheus::BuildHistogram()
        .Name(prefix + name)
        .Help(help)
        .Labels(labels)
        .Register(registry)
        .Add({}, std::move(buckets));
  }

  prometheus::Registry registry;
  const std::string prefix;
  const Labels labels;

  // Told as it happens.
  Histogram& ttft = OneHistogram("time_to_first_token_seconds",
                                 "From arrival to the first token, tokenising included", Times());
  Histogram& token_gap =
      OneHistogram("inter_token_latency_seconds", "Between two tokens of a choice", Times());
  Histogram& per_token =
      OneHistogram("request_time_per_output_token_seconds",
                   "Of a request: from its first to its last token, per further token", Times());
  Histogram& e2e =
      OneHistogram("e2e_request_latency_seconds", "From arrival to the last token", Times());
  Histogram& queue = OneHistogram("request_queue_time_seconds",
                                  "From arrival to the last entry into the batch", Times());
  Histogram& inference = OneHistogram("request_inference_time_seconds",
                                      "From the last entry into the batch to the end", Times());
  Histogram& prefill =
      OneHistogram("request_prefill_time_seconds",
                   "From the last entry into the batch to the first token", Times());
  Histogram& decode =
      OneHistogram("request_decode_time_seconds", "From the first token to the end", Times());
  Histogram& prompt_tokens =
      OneHistogram("request_prompt_tokens", "Tokens of a request's prompt", Tokens());
  Histogram& generation_tokens =
      OneHistogram("request_generation_tokens", "Tokens drawn for a request", Tokens());
  Histogram& params_n = OneHistogram("request_params_n", "n of a request", OneTwoFive(1, 20));
  Histogram& params_max_tokens =
      OneHistogram("request_params_max_tokens", "max_tokens of a request", Tokens());
  Histogram& prefill_computed =
      OneHistogram("request_prefill_kv_computed_tokens",
                   "Prompt tokens that were computed, not found in the prefix cache", Tokens());
  Histogram& iteration =
      OneHistogram("iteration_tokens_total", "Tokens computed in a step", Tokens());
  Family<Counter>& finished =
      Counters("request_success_total", "Finished requests, by how they ended");
  Family<Counter>& rejections =
      Counters("admission_rejections_total", "Requests that were turned away, by error code");
  Family<Counter>& refused_keys =
      Counters("refused_keys_total", "Requests with a wrong API key, or without one");
  Family<Counter>& suppressed =
      Counters("markup_suppressed_total", "Pieces of markup kept out of chats, by what they were");
  Histogram& chunk_delay =
      OneHistogram("stream_chunk_delay_seconds",
                   "From the draw of a token to its way into the socket", OneTwoFive(0.0001, 10));
  Family<Counter>& http_requests = prometheus::BuildCounter()
                                       .Name("http_requests_total")
                                       .Help("Answers by route, method and status")
                                       .Register(registry);
  Family<Histogram>& http_duration = prometheus::BuildHistogram()
                                         .Name("http_request_duration_seconds")
                                         .Help("From a request's last byte to its answer's")
                                         .Register(registry);

  // Those of http_requests and http_duration that exist: finding them there by their labels takes
  // longer than many an answer.
  struct Answers {
    Counter* count = nullptr;
    Histogram* duration = nullptr;
  };
  Answers& AnswersOf(std::string_view handler, std::string_view method, int status);
  std::mutex answers_mutex;
  std::map<std::tuple<std::string_view, std::string_view, int>, Answers> answers;

  // Set when somebody asks.
  std::mutex mutex;
  Gauge& load_progress =
      Gauges("load_progress_ratio", "How much of the model is loaded, 0 to 1").Add({});
  Gauge& running = Gauges("num_requests_running", "Sequences in the batch").Add({});
  Gauge& waiting = Gauges("num_requests_waiting", "Sequences in the queue").Add({});
  Family<Gauge>& waiting_by_reason =
      Gauges("num_requests_waiting_by_reason",
             "Sequences in the queue: capacity, for room in the batch; deferred, for another event "
             "(never here)");
  Gauge& cache_usage =
      Gauges("kv_cache_usage_perc", "Context blocks that sequences hold, 0 to 1").Add({});
  Family<Gauge>& cache_config = Gauges("cache_config_info", "Settings of the KV cache");
  Family<Gauge>& pool_pages = Gauges("pool_pages", "Pages of each pool");
  Family<Gauge>& pool_used =
      Gauges("pool_used_pages", "Pages that sequences or the prefix cache hold");
  Counter& prompt_total = Counters("prompt_tokens_total", "Tokens of scheduled prompts").Add({});
  Counter& generation_total = Counters("generation_tokens_total", "Tokens drawn").Add({});
  Counter& preemptions =
      Counters("num_preemptions_total", "Sequences put back into the queue for want of memory")
          .Add({});
  Counter& cache_queries =
      Counters("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache").Add({});
  Counter& cache_hits =
      Counters("prefix_cache_hits_total", "Prompt tokens not computed thanks to the prefix cache")
          .Add({});
  Counter& missed_snapshots =
      Counters("prefix_cache_missed_snapshot_tokens_total",
               "Prompt tokens computed again although their blocks were found: no snapshot")
          .Add({});
  Counter& saturated_blocks =
      Counters("nvfp4_saturated_blocks_total",
               "Blocks of activations whose wanted NVFP4 scale was beyond the largest")
          .Add({});
  Counter& log_lines_dropped =
      Counters("log_lines_dropped_total", "Lines of the log that stderr did not take").Add({});
  Gauge& build_info = Gauges("build_info", "This program")
                          .Add({{"version", ProgramVersion()}, {"commit", ProgramCommit()}});
  ProcessMetrics process{registry};

  void SetEngine(const EngineStatistics& engine);
  void CountSuppressed(const ChatSplitter::Suppressed& counts);
};

namespace {

// Counters that the engine keeps: brought up to its value.
void Raise(Counter& counter, int64_t value) {
  const double more = static_cast<double>(value) - counter.Value();
  if (more > 0) counter.Increment(more);
}

}  // namespace

void Metrics::State::SetEngine(const EngineStatistics& engine) {
  const SchedulerCounts& counts = engine.scheduler;
  running.Set(static_cast<double>(counts.running));
  waiting.Set(static_cast<double>(counts.waiting));
  waiting_by_reason.Add({{"reason", "capacity"}}).Set(static_cast<double>(counts.waiting));
  waiting_by_reason.Add({{"reason", "deferred"}}).Set(0);
  const auto blocks = static_cast<double>(counts.pool_sizes.context_blocks);
  cache_usage.Set(blocks > 0 ? static_cast<double>(counts.context_blocks_referenced) / blocks : 0);
  cache_config
      .Add({{"block_size", std::to_string(kContextBlockTokens)},
            {"num_cpu_blocks", std::to_string(counts.pool_sizes.context_blocks)}})
      .Set(1);
  const auto pool = [&](const char* name, int64_t size, int64_t used) {
    pool_pages.Add({{"pool", name}}).Set(static_cast<double>(size));
    pool_used.Add({{"pool", name}}).Set(static_cast<double>(used));
  };
  const KvPoolSizes& size = counts.pool_sizes;
  const KvPoolSizes& used = counts.pool_used;
  pool("context", size.context_blocks, used.context_blocks);
  pool("window", size.window_pages, used.window_pages);
  pool("state", size.state_slots, used.state_slots);
  pool("tail", size.tails, used.tails);
  Raise(prompt_total, engine.prompt_tokens);
  Raise(generation_total, engine.generation_tokens);
  Raise(preemptions, counts.preemptions);
  Raise(cache_queries, counts.cache_queried_tokens);
  Raise(cache_hits, counts.cache_hit_tokens);
  Raise(missed_snapshots, counts.cache_missed_snapshot_tokens);
  Raise(saturated_blocks, engine.saturated_blocks);
}

void Metrics::State::CountSuppressed(const ChatSplitter::Suppressed& counts) {
  for (const auto& [reason, count] : {std::pair{"tag", counts.tags},
                                      {"malformed", counts.malformed},
                                      {"unfinished", counts.unfinished},
                                      {"think", counts.thinks}}) {
    suppressed.Add({{"reason", reason}}).Increment(static_cast<double>(count));
  }
}

Metrics::Metrics(std::string_view prefix, const std::string& model_name)
    : state_(std::make_unique<State>(prefix, model_name)) {
  state_->build_info.Set(1);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    state_->finished.Add({{"finished_reason", std::string(Name(reason))}});
  }
  state_->CountSuppressed({});
}
Metrics::~Metrics() = default;

void Metrics::OnStep(const StepReport& step) {
  state_->iteration.Observe(static_cast<double>(step.tokens));
  for (const EngineClock::duration gap : step.token_gaps) state_->token_gap.Observe(Seconds(gap));
}

void Metrics::OnFinished(const RequestReport& request) {
  State& s = *state_;
  s.finished.Add({{"finished_reason", std::string(Name(Outcome(request)))}}).Increment();
  s.CountSuppressed(request.suppressed);
  s.params_n.Observe(request.n);
  s.params_max_tokens.Observe(static_cast<double>(request.max_tokens));
  s.e2e.Observe(Seconds(request.finished - request.arrival));
  if (!request.scheduled) return;
  s.queue.Observe(Seconds(*request.scheduled - request.arrival));
  s.inference.Observe(Seconds(request.finished - *request.scheduled));
  s.prompt_tokens.Observe(static_cast<double>(request.prompt_tokens));
  s.generation_tokens.Observe(static_cast<double>(request.completion_tokens));
  s.prefill_computed.Observe(static_cast<double>(request.prompt_tokens - request.cached_tokens));
  if (!request.first_token) return;
  s.ttft.Observe(Seconds(*request.first_token - request.arrival));
  // A preemption after the first token moves the entry into the batch behind it.
  s.prefill.Observe(std::max(0., Seconds(*request.first_token - *request.scheduled)));
  const double decode = Seconds(request.finished - *request.first_token);
  s.decode.Observe(decode);
  if (request.completion_tokens > 1) {
    s.per_token.Observe(decode / static_cast<double>(request.completion_tokens - 1));
  }
}

Metrics::State::Answers& Metrics::State::AnswersOf(std::string_view handler,
                                                   std::string_view method, int status) {
  const std::lock_guard lock(answers_mutex);
  Answers& found = answers[{handler, method, status}];
  if (found.count != nullptr) return found;
  Labels with_labels{{"handler", std::string(handler)}, {"method", std::string(method)}};
  found.duration = &http_duration.Add(with_labels, Times());
  with_labels.emplace("status", std::to_string(status));
  found.count = &http_requests.Add(with_labels);
  return found;
}

void Metrics::CountAnswer(std::string_view handler, std::string_view method, int status,
                          double seconds) {
  const State::Answers& answers = state_->AnswersOf(handler, method, status);
  answers.count->Increment();
  answers.duration->Observe(seconds);
}

void Metrics::CountRejection(const std::string& reason) {
  state_->rejections.Add({{"reason", reason}}).Increment();
}

void Metrics::CountRefusedKey(std::string_view reason) {
  state_->refused_keys.Add({{"reason", std::string(reason)}}).Increment();
}

void Metrics::ObserveChunkDelay(double seconds) { state_->chunk_delay.Observe(seconds); }

std::string Metrics::Text(const Moment& now) {
  const std::lock_guard lock(state_->mutex);
  state_->load_progress.Set(now.load_progress);
  if (now.engine) state_->SetEngine(*now.engine);
  Raise(state_->log_lines_dropped, DroppedLogLines());
  state_->process.Update();
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, state_->registry.Collect());
  return text.str();
}

}  // namespace halfbyte
