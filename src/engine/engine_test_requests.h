// What tests of the engine share: limits for the fake executor, small requests, collected results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/fake_executor.h"
#include "engine/mailbox.h"

namespace halfbyte {

inline ExecutorLimits FakeLimits(int64_t sequences, int64_t context_blocks, int64_t vocabulary = 60,
                                 int64_t snapshots = 4) {
  const int64_t batch = sequences + 256;
  return {.pools = {.context_blocks = context_blocks,
                    .window_pages = KvPoolSizes::WindowPages(sequences, batch, snapshots, 128),
                    .state_slots = sequences,
                    .tails = snapshots},
          .replay_tokens = FakeExecutor::ReplayTokens(128),
          .batch_tokens = batch,
          .max_model_len = context_blocks * kContextBlockTokens,
          .vocabulary = vocabulary};
}

inline EngineOptions OptionsFor(const ExecutorLimits& limits) {
  return {.scheduler = {.max_sequences = limits.pools.state_slots,
                        .max_batch_tokens = limits.batch_tokens}};
}

inline std::vector<int32_t> RandomIds(int64_t count, uint32_t seed, uint32_t vocabulary = 60) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % vocabulary));
  return ids;
}

inline Request IdsRequest(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed = 0) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  request.output.kind = OutputFormat::Kind::kIds;
  request.mailbox = std::make_shared<Mailbox>();
  return request;
}

// The events of a request by choice, joined.
using Results = std::map<int32_t, OutputEvent>;

inline void Collect(Results& results, std::vector<OutputEvent> events) {
  for (OutputEvent& event : events) {
    const auto [at, added] = results.try_emplace(event.choice, OutputEvent{.choice = event.choice});
    Append(at->second, std::move(event));
  }
}

inline bool Complete(const Results& results, int32_t choices) {
  return std::ssize(results) == choices &&
         std::ranges::all_of(results, [](const auto& it) { return it.second.finish.has_value(); });
}

}  // namespace halfbyte
