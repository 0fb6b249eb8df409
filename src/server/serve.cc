#include "server/serve.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "base/available_memory.h"
#include "base/heap.h"
#include "base/line_writer.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory_reserve.h"
#include "base/temporary_path.h"
#include "server/process_limits.h"
#include "server/service_manager.h"

namespace halfbyte {
namespace {

using Clock = std::chrono::steady_clock;
using Loaded = Result<ServedModel>;

// Engine, two that read bodies, two that write lines, one that loads, one to spare.
constexpr int kOtherThreads = 7;
constexpr size_t kLeastKeyBytes = 20;
constexpr int64_t kReservedBytes = 8 << 20;
constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kReportEvery = std::chrono::seconds(10);
constexpr auto kReturnMemoryEvery = std::chrono::seconds(10);  // while no request runs
constexpr auto kLastAnswers = std::chrono::seconds(2);         // to be sent, once all is done
constexpr auto kCancelledAnswers = std::chrono::seconds(1);    // to be made, once all is cancelled

[[noreturn]] void EndNow(ServeEnd end) {
  FlushServiceLog();
  RemoveTemporaryPaths();
  std::_Exit(static_cast<int>(end));
}

// Blocks the signals for this thread and those it starts, so that they wait to be taken.
sigset_t BlockSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) ::sigaddset(&signals, number);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// The next signal, or 0 when a tick has passed.
int WaitForSignal(const sigset_t& signals) {
  const timespec tick{.tv_nsec = std::chrono::nanoseconds(kTick).count()};
  return std::max(0, ::sigtimedwait(&signals, nullptr, &tick));
}

// work()'s result, or an error where memory or threads could not be had.
template <class Work>
auto OrOutOfMemory(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorKind::kMemory,
                     "memory ran out while the server started: raise the limit (ulimit -v, the "
                     "control group), or give a smaller --max-num-batched-tokens or fewer "
                     "--threads");
  } catch (const std::system_error& error) {
    return MakeError(ErrorKind::kMemory,
                     "a thread could not be started: {}: raise the limit (ulimit -u, ulimit -v)",
                     error.what());
  }
}

bool IsLoopback(const HttpOptions& http) {
  return !http.unix_path.empty() || http.host == "localhost" || http.host == "::1" ||
         http.host.starts_with("127.");
}

// While --host is looked up, which may take long, signals are heard.
Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options, HttpHandler& handler,
                                           const sigset_t& signals) {
  std::optional<Result<std::unique_ptr<HttpServer>>> server;
  const auto started =
      std::async(std::launch::async, [&] { server = HttpServer::Start(options, &handler); });
  while (started.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    const int number = WaitForSignal(signals);
    if (number == SIGTERM || number == SIGINT) EndNow(ServeEnd::kDone);
  }
  return *std::move(server);
}

// What runs from the first to the last tick.
class Supervisor {
 public:
  Supervisor(const ServeOptions& options, const ServedModelOptions& load, Service& service,
             HttpServer& server)
      : options_(options), load_(load), service_(service), server_(server) {
    loading_ = std::async(std::launch::async, [this]() -> Loaded {
      return OrOutOfMemory([this] {
        return LoadServedModel(load_, [this](const ProgressReport& progress) {
          service_.lifecycle().SetProgress(progress);
        });
      });
    });
  }

  ServeResult Run(const sigset_t& signals) {
    for (;;) {
      TakeSignal(WaitForSignal(signals));
      // Not there: requests are refused, which gives memory back.
      const bool enough = MemoryReserve::Refill();
      if (std::exchange(enough_memory_, enough) != enough) {
        spdlog::warn(enough ? "memory suffices again" : "memory is short: requests are refused");
      }
      if (auto end = Tick(Clock::now())) return *std::move(end);
    }
  }

 private:
  void TakeSignal(int number) {
    if (number == SIGHUP) ReloadKeys();
    if (number == SIGUSR1) LogState();
    if (number != SIGTERM && number != SIGINT) return;
    if (stop_by_) EndNow(ServeEnd::kDrainCut);
    if (loading_.valid()) {
      spdlog::info("told to end while the model was being loaded");
      EndNow(ServeEnd::kDone);
    }
    const auto timeout = std::chrono::duration_cast<Clock::duration>(options_.shutdown_timeout);
    stop_by_ = Clock::now() + timeout;
    NotifyServiceManager("STOPPING=1");
    service_.Drain();
    spdlog::info("draining: {} requests get {} s to finish; a second signal ends at once",
                 service_.Statistics()->unfinished_requests, options_.shutdown_timeout.count());
  }

  std::optional<ServeResult> Tick(Clock::time_point now) {
    if (loading_.valid()) return TickLoading(now);
    const EngineStatistics engine = *service_.Statistics();
    service_.lifecycle().Watch(engine, now);
    if (engine.dead) {
      service_.lifecycle().SetFailed();
      server_.Stop(now + kLastAnswers);
      return ServeResult{ServeEnd::kEngine, "the engine has failed: " + engine.death};
    }
    if (stop_by_) return TickDraining(engine, now);
    Summarize(engine, now);
    if (engine.unfinished_requests == 0 && now - returned_ >= kReturnMemoryEvery) {
      returned_ = now;
      ReturnFreePages();
    }
    return std::nullopt;
  }

  std::optional<ServeResult> TickLoading(Clock::time_point now) {
    if (loading_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      LogProgress(now);
      return std::nullopt;
    }
    Loaded model = loading_.get();
    if (!model) return LoadingFailed(model.error());
    const Status started = OrOutOfMemory([&] { return service_.Start(*std::move(model)); });
    if (!started) return LoadingFailed(started.error());
    stdout_.Write(fmt::format("halfbyte ready {}\n", server_.addresses().front()));
    NotifyServiceManager("READY=1");
    return std::nullopt;
  }

  ServeResult LoadingFailed(const Error& error) {
    service_.lifecycle().SetFailed();
    server_.Stop(Clock::now());
    return {error.kind == ErrorKind::kInput ? ServeEnd::kModel : ServeEnd::kMemory, error.message};
  }

  std::optional<ServeResult> TickDraining(const EngineStatistics& engine, Clock::time_point now) {
    const bool finished = engine.unfinished_requests == 0;
    if (cut_ == 0 && !finished && now >= *stop_by_) {
      cut_ = engine.unfinished_requests;
      service_.CancelAll();
    }
    // A step that takes longer than this does not hold the end up.
    const bool stuck = cut_ > 0 && now >= *stop_by_ + kCancelledAnswers;
    if (!finished && !stuck) return std::nullopt;
    server_.Stop(now + (stuck ? Clock::duration(0) : kLastAnswers));
    if (cut_ == 0) return ServeResult{};
    spdlog::error("{} requests had not finished when --shutdown-timeout was over", cut_);
    if (stuck) EndNow(ServeEnd::kDrainCut);
    return ServeResult{ServeEnd::kDrainCut, ""};
  }

  void ReloadKeys() {
    const Status reloaded = service_.keys().Reload();
    if (reloaded) {
      spdlog::info("SIGHUP: API keys read again");
    } else {
      spdlog::error("SIGHUP: API keys stay as they are: {}", reloaded.error().message);
    }
  }

  void LogState() const {
    const auto engine = service_.Statistics();
    if (!engine) {
      spdlog::info("SIGUSR1: the model is being loaded");
      return;
    }
    const SchedulerCounts& counts = engine->scheduler;
    const KvPoolSizes& size = counts.pool_sizes;
    const KvPoolSizes& used = counts.pool_used;
    spdlog::info(
        "SIGUSR1: {} connections, {} unfinished requests, sequences: {} running, {} waiting, {} "
        "preemptions; {} steps, {} prompt and {} generated tokens; pools (used of): context "
        "blocks {} of {} ({} by sequences), window pages {} of {}, state slots {} of {}, tails {} "
        "of {}; prefix cache: {} of {} tokens taken, {} found but computed again",
        server_.connections(), engine->unfinished_requests, counts.running, counts.waiting,
        counts.preemptions, engine->steps, engine->prompt_tokens, engine->generation_tokens,
        used.context_blocks, size.context_blocks, counts.context_blocks_referenced,
        used.window_pages, size.window_pages, used.state_slots, size.state_slots, used.tails,
        size.tails, counts.cache_hit_tokens, counts.cache_queried_tokens,
        counts.cache_missed_snapshot_tokens);
  }

  // On a terminal the loader draws a bar.
  void LogProgress(Clock::time_point now) {
    if (now - reported_ < kReportEvery || ::isatty(STDERR_FILENO) == 1) return;
    reported_ = now;
    spdlog::info("loading: {}", service_.lifecycle().progress().Describe());
  }

  // Every ten seconds in which something was computed.
  void Summarize(const EngineStatistics& engine, Clock::time_point now) {
    if (now - reported_ < kReportEvery) return;
    const double seconds = std::chrono::duration<double>(now - reported_).count();
    const EngineStatistics before = std::exchange(summarized_, engine);
    reported_ = now;
    if (engine.steps == before.steps) return;
    const SchedulerCounts& counts = engine.scheduler;
    const auto rate = [&](int64_t after, int64_t earlier) {
      return static_cast<double>(after - earlier) / seconds;
    };
    spdlog::info(
        "{} running, {} waiting; {:.1f} prompt and {:.1f} generated tokens/s, {:.1f} steps/s; {} "
        "of {} context blocks held",
        counts.running, counts.waiting, rate(engine.prompt_tokens, before.prompt_tokens),
        rate(engine.generation_tokens, before.generation_tokens), rate(engine.steps, before.steps),
        counts.context_blocks_referenced, counts.pool_sizes.context_blocks);
  }

  const ServeOptions& options_;
  const ServedModelOptions& load_;  // fitted to the memory there is
  Service& service_;
  HttpServer& server_;
  std::future<Loaded> loading_;               // valid until its result is taken
  std::optional<Clock::time_point> stop_by_;  // draining
  int64_t cut_ = 0;                           // requests that the drain did not wait for
  LineWriter stdout_{STDOUT_FILENO};
  bool enough_memory_ = true;
  Clock::time_point returned_ = Clock::now();
  Clock::time_point reported_ = Clock::now();
  EngineStatistics summarized_;
};

}  // namespace

std::vector<std::string> Contradictions(const ServeOptions& options) {
  std::vector<std::string> found;
  const ServedModelOptions& load = options.load;
  const SchedulerOptions& scheduler = options.service.scheduler;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    found.push_back(fmt::format(format, std::forward<Args>(args)...));
  };
  if (scheduler.max_batch_tokens < scheduler.max_sequences + 128) {
    add("--max-num-batched-tokens {} is too small for --max-num-seqs {}: it must be at least {}",
        scheduler.max_batch_tokens, scheduler.max_sequences, scheduler.max_sequences + 128);
  }
  if (!options.http.unix_path.empty() && options.http.unix_path.size() > 107) {
    add("--uds {}: the path of a socket has at most 107 bytes", options.http.unix_path);
  }
  const std::string& root = options.service.root_path;
  if (!root.empty() && (!root.starts_with('/') || root.ends_with('/'))) {
    add("--root-path {} must begin with a slash and not end with one", root);
  }
  if (load.prefix_cache_snapshots.value_or(0) > 0 && !scheduler.prefix_cache) {
    add("--prefix-cache-snapshots {} needs the prefix cache, which --no-enable-prefix-caching "
        "turns off",
        *load.prefix_cache_snapshots);
  }
  for (const std::string& name : options.service.allowed_hosts) {
    if (std::string fault = AllowedHosts::Fault(name); !fault.empty()) found.push_back(fault);
  }
  const std::string& prefix = options.service.metrics_prefix;
  const bool word = std::ranges::all_of(
      prefix, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; });
  if (prefix.empty() || !word) {
    add("--metrics-prefix {} must be letters and underscores, as names of metrics are", prefix);
  }
  if (load.max_model_len && *load.max_model_len < 2) {
    add("--max-model-len {} leaves no room for a prompt and a token", *load.max_model_len);
  }
  return found;
}

Result<ServeResult> ServeUntilTheEnd(const ServeOptions& options) {
  const sigset_t signals = BlockSignals();
  HttpOptions http = options.http;
  if (const Status fits = FitToOpenFiles(http); !fits)
    return ServeResult{ServeEnd::kBind, fits.error().message};
  ServedModelOptions load = options.load;
  load.request_bytes = FitToMemory(http, ReadAvailableMemory());
  const int threads = http.io_threads + options.load.threads + kOtherThreads;
  if (const Status enough = CheckThreads(threads); !enough) {
    return ServeResult{ServeEnd::kMemory, enough.error().message};
  }
  ReadZerosWhereAMappedFileIsTruncated();
  auto keys = ApiKeys::Create(options.api_keys, options.api_key_file);
  if (!keys) return ServeResult{ServeEnd::kBind, keys.error().message};
  if ((*keys)->shortest() < kLeastKeyBytes) {
    spdlog::warn("an API key has only {} characters and may be guessed; take {} random ones",
                 (*keys)->shortest(), kLeastKeyBytes);
  }
  if (!(*keys)->required() && !IsLoopback(options.http)) {
    spdlog::warn(
        "{} can be reached from other machines, and there is no API key: anybody there "
        "can use the model (--api-key, --api-key-file)",
        options.http.host);
  }
  ServiceOptions service_options = options.service;
  service_options.allowed_hosts.push_back(options.http.host);
  Service service(std::move(service_options), Announce(options.load), *std::move(keys));
  auto server = Listen(http, service, signals);
  if (!server) return ServeResult{ServeEnd::kBind, server.error().message};
  for (const std::string& address : (*server)->addresses())
    spdlog::info("listening on {}", address);
  return Supervisor(options, load, service, **server).Run(signals);
}

ServeResult Serve(const ServeOptions& options) {
  ReturnLargeBlocks();  // before the first is freed
  MarkEssentialThread();
  if (!MemoryReserve::Install(kReservedBytes)) {
    return {ServeEnd::kMemory, "there is no memory to start with: raise the limit (ulimit -v)"};
  }
  if (ReadAvailableMemory().addresses) UseFewHeaps();
  const auto result = OrOutOfMemory([&] { return ServeUntilTheEnd(options); });
  if (!result) return {ServeEnd::kMemory, result.error().message};
  return *result;
}

}  // namespace halfbyte
