// From a model directory to what the server serves: tokenizer, weights, executor (server.md §4).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "model/transformer.h"
#include "openai/api.h"
#include "paging/executor.h"
#include "text/tokenizer.h"

namespace halfbyte {

// --load-format fake: no weights and no model. Every token is followed by the next one, by id, that
// is printable ASCII, the last of these by the first; so texts go on until a stop or max_tokens.
struct FakeModel {
  double step_seconds = 0;
  double token_seconds = 0;
  double load_seconds = 0;
  int64_t fail_at_step = 0;  // 0: never
};

struct ServedModelOptions {
  std::filesystem::path directory;
  std::optional<FakeModel> fake;  // instead of the model; of the directory only the tokenizer
  TransformerOptions transformer;
  int threads = 1;

  int64_t max_num_seqs = 16;
  std::optional<int64_t> max_model_len;           // absent: the model's, or what fits
  std::optional<int64_t> kv_cache_bytes;          // absent: half of what weights leave free
  std::optional<int64_t> prefix_cache_snapshots;  // absent: what a tenth of it holds

  int64_t request_bytes = 0;  // that requests may take beside the model

  std::vector<std::string> served_names;  // empty: the directory's name
  bool read_generation_config = true;
  std::string override_generation_config;  // JSON; empty: nothing
  std::optional<bool> thinking;            // instead of the model's defaults
  std::optional<ReasoningEffort> reasoning_effort;
};

struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Transformer> transformer;  // null with the fake
  std::unique_ptr<Executor> executor;
  ModelInfo info;  // complete; points to the tokenizer
};

// What is known of the model before it is loaded: names and time.
ModelInfo Announce(const ServedModelOptions& options);

// `listener` is told of the phases "read tokenizer" and "load weights". Errors: the directory is
// not what it must be; memory is short (kMemory), which is asked for before weights are read.
Result<ServedModel> LoadServedModel(const ServedModelOptions& options,
                                    const ProgressListener& listener);

}  // namespace halfbyte
