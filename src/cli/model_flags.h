// Flags that every command with a model in it takes.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
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
};

// MODEL_DIR, --math, --arithmetic, --activation-scales, --headroom, --threads.
void AddModelFlags(CLI::App& command, ModelFlags& flags);
// Some of them, for a command that takes no others.
void AddDirectoryFlag(CLI::App& command, ModelFlags& flags);
void AddThreadsFlag(CLI::App& command, ModelFlags& flags);
void AddHeadroomFlag(CLI::App& command, ModelFlags& flags);

// Text in tokens of the model, control tokens recognized.
Result<std::vector<int32_t>> EncodeText(const ModelFlags& flags, const std::string& text);

// Tokens that are evaluated together: --context, or kDefaultContext, or the model's if that is
// smaller. Error: more than the model's.
inline constexpr int64_t kDefaultContext = 1024;
Result<int64_t> ContextOf(const Transformer& model, const std::optional<int64_t>& wanted);

// Error: flags that contradict each other, or a file of activation scales that cannot be read.
Result<TransformerOptions> TransformerOptionsOf(const ModelFlags& flags);

struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Transformer> transformer;
};

// reference_tokens, communicator: see TransformerOptions.
Result<LoadedModel> LoadModel(const ModelFlags& flags, int64_t reference_tokens = 0,
                              Communicator* communicator = nullptr);

}  // namespace halfbyte
