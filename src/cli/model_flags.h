// Flags that every command with a model in it takes.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_plan.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/model_checkpoint.h"
#include "comm/communicator.h"
#include "model/transformer.h"

namespace halfbyte {

struct ModelFlags {
  std::filesystem::path directory;
  std::string math = "default";
  std::string arithmetic = "w4a16";
  std::string activation_scales;  // "checkpoint", "per-token", a file; empty: as the model has it
  std::optional<int> headroom;    // default: kDefaultHeadroom
  int threads = AvailableProcessors();
  std::string device = "cpu";  // or "cuda", "cuda:1", "auto"
  double gpu_memory = TransformerOptions{}.gpu_memory;
};

// MODEL_DIR, --math, --arithmetic, --activation-scales, --headroom, --threads, --device,
// --gpu-memory-utilization.
void AddModelFlags(CLI::App& command, ModelFlags& flags);
// Some of them, for a command that takes no others.
void AddDirectoryFlag(CLI::App& command, ModelFlags& flags);
void AddThreadsFlag(CLI::App& command, ModelFlags& flags);
void AddHeadroomFlag(CLI::App& command, ModelFlags& flags);

// Text in tokens of the model, control tokens recognized.
Result<std::vector<int32_t>> EncodeText(const ModelFlags& flags, const std::string& text);

// With --device auto on the CPU so far. Error: flags that contradict each other, or a file of
// activation scales that cannot be read.
Result<TransformerOptions> TransformerOptionsOf(const ModelFlags& flags);

// For --device auto: GPU 0 if it computes such a model and has memory for its weights, else the
// CPU. The sentence says which, and why.
std::string ChooseDevice(const ModelCheckpoint& checkpoint, TransformerOptions& options);

// What a command runs the model with: the tokens that the KV cache holds, and the most tokens of a
// step whose logits are wanted.
struct ModelUse {
  int64_t context_tokens = 0;
  int64_t logit_rows = 1;
  // The flag of context_tokens, for the sentence that it is too much.
  std::string_view context_flag;
};

struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Transformer> transformer;
};

// A model's directory that has been opened, and nothing of its weights read.
struct OpenedModel {
  ModelCheckpoint checkpoint;
  TransformerOptions options;
  AvailableMemory available;  // to this rank, of the model's device
};
// reference_tokens, ranks: see TransformerOptions.
Result<OpenedModel> OpenModel(const ModelFlags& flags, Communicator& ranks,
                              int64_t reference_tokens = 0);

// Tokens that are evaluated together: --context, or kDefaultContext, or the model's if that is
// smaller. Error: more than the model's.
inline constexpr int64_t kDefaultContext = 1024;
Result<int64_t> ContextOf(const OpenedModel& model, const std::optional<int64_t>& wanted);

// Texts cut into pieces of so many tokens (--context), all of whose logits are wanted.
ModelUse EvaluationOf(const OpenedModel& model, int64_t context);

// The most tokens up to `wanted` whose KV cache there is memory for.
Result<int64_t> AffordableContext(const OpenedModel& model, const ModelFlags& flags,
                                  int64_t wanted);

// Asks for the memory before it reads weights. Error (kMemory) if there is too little.
Result<LoadedModel> LoadModel(OpenedModel model, const ModelFlags& flags, const ModelUse& use);

}  // namespace halfbyte
