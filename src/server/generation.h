// One request that generates, from its body to its answer.
//
//   IO thread   Generate posts the body to the pool
//   pool        parse, tokenise, submit to the engine
//   engine      events into the mailbox, which wakes the connection
//   IO thread   Poll: events -> chunks, or one body (what takes long: on the pool)
//
// The reply's death before its end stops what runs for it, at whatever stage.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "engine/engine.h"
#include "http/http.h"
#include "openai/api.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/work_pool.h"

namespace halfbyte {

// What replies work with; all of it outlives them and their jobs.
struct GenerationContext {
  const OpenAiApi& api;
  Engine& engine;
  RequestLog& log;
  Metrics& metrics;
  int overload_status = 429;
  std::chrono::duration<double> ping_interval{15};
  std::optional<std::chrono::duration<double>> queue_timeout;
  std::optional<std::chrono::duration<double>> request_timeout;
  bool log_prompts = false;
};

// `chat`: the body is one of /v1/chat/completions, else of /v1/completions. `call`: its log entry.
// An engine that takes no request of `client` now is told before the body is parsed; a pool that is
// full gives the answer for a full queue. A request with the field "x-halfbyte-timing: on" gets
// comments in its stream that say when tokens were drawn.
std::unique_ptr<HttpReply> Generate(const GenerationContext& context, WorkPool& pool,
                                    ClientId client, bool chat, HttpRequest request, Wake wake,
                                    std::shared_ptr<CallRecord> call);

// The answer for a request that memory is short for.
ApiError OutOfMemory();

// The answer for a pool that is full.
ApiError PoolIsFull(int overload_status);

// The answer that `work` makes on the pool; null if the client's queue there is full. `work` may
// outlive the reply, whose death asks for its stop, or keeps it from starting.
std::unique_ptr<HttpReply> AnswerOnPool(WorkPool& pool, ClientId client,
                                        std::function<HttpResponse(std::stop_token)> work,
                                        Wake wake);

// The fields that say what was made of a body: x-halfbyte-ignored, -clamped, -thinking.
void AddNotes(HttpFields& fields, const std::vector<std::string>& ignored,
              const std::optional<int64_t>& clamped, const std::optional<ThinkingUsed>& thinking);

}  // namespace halfbyte
