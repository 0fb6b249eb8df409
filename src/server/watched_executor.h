// An executor whose weights lie in mapped files: a step during which one of them may have been
// written to or cut fails, and with it the engine, rather than answer from other weights than those
// that were loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/file_watch.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "paging/executor.h"

namespace halfbyte {

class ModelFiles {
 public:
  ModelFiles() = default;
  // Watched from now on. Where the system allows no watch, only cuts are noticed.
  explicit ModelFiles(const std::vector<std::filesystem::path>& files) {
    auto watch = FileWatch::Open(files);
    if (watch) {
      watch_.emplace(*std::move(watch));
    } else {
      spdlog::warn("changes to the model's files would not be noticed: {}", watch.error().message);
    }
  }

  // Error: one has changed since.
  Status Check() {
    const auto changed = watch_ ? watch_->Changed() : std::nullopt;
    if (changed) return Fault(changed->string());
    return HasReadTruncatedFiles() ? Fault("a file of the model") : Status();
  }

 private:
  static Status Fault(const std::string& file) {
    return MakeError(
        "{}: was written to or cut while it was in use; put the model's files right, start again, "
        "and replace them by renaming new ones",
        file);
  }

  std::optional<FileWatch> watch_;
};

class WatchedExecutor : public Executor {
 public:
  WatchedExecutor(std::unique_ptr<Executor> executor, ModelFiles files)
      : executor_(std::move(executor)), files_(std::move(files)) {}

  const ExecutorLimits& limits() const override { return executor_->limits(); }
  int64_t saturated_blocks() const override { return executor_->saturated_blocks(); }
  Result<MatrixView<const float>> Run(const StepPlan& plan) override {
    auto logits = executor_->Run(plan);
    HB_RETURN_IF_ERROR(files_.Check());
    return logits;
  }

 private:
  const std::unique_ptr<Executor> executor_;
  ModelFiles files_;
};

}  // namespace halfbyte
