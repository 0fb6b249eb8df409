// Flags that every command with a model in it takes.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/transformer.h"

namespace halfbyte {

struct ModelFlags {
  std::filesystem::path directory;
  std::string math = "default";
  std::string arithmetic = "w4a16";
  int threads = AvailableProcessors();
};

// MODEL_DIR, --math, --arithmetic, --threads.
void AddModelFlags(CLI::App& command, ModelFlags& flags);

struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Transformer> transformer;
};

// reference_tokens: see TransformerOptions.
Result<LoadedModel> LoadModel(const ModelFlags& flags, int64_t reference_tokens = 0);

}  // namespace halfbyte
