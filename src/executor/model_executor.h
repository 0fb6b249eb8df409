// The model as an executor: a ragged batch over Transformer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "model/transformer.h"
#include "paging/executor.h"

namespace halfbyte {

struct ModelExecutorOptions {
  int64_t max_sequences = 16;
  // Most positions of a sequence; absent: the model's own, or what fits the memory.
  std::optional<int64_t> max_model_len;
  int64_t kv_memory_bytes = int64_t{1} << 30;
  // Of the prefix cache; absent: what a tenth of the memory holds.
  std::optional<int64_t> snapshots;
};

// The pools of a model that has not been loaded. Errors: as Create.
Result<ExecutorLimits> PlanExecutor(const ModelConfig& config, const TransformerOptions& model,
                                    const ModelExecutorOptions& options);

class ModelExecutor : public Executor {
 public:
  // `model` must outlive the executor; steps have at most its batch_tokens.
  // Errors: memory that does not hold one sequence of max_model_len, with the arithmetic and the
  // largest length that fits; those of Transformer::NewMemory.
  static Result<std::unique_ptr<ModelExecutor>> Create(Transformer& model,
                                                       const ModelExecutorOptions& options);

  const ExecutorLimits& limits() const override { return limits_; }
  Result<MatrixView<const float>> Run(const StepPlan& plan) override;
  int64_t saturated_blocks() const override;

 private:
  ModelExecutor(Transformer& model, std::unique_ptr<KvMemory> memory, const ExecutorLimits& limits)
      : model_(model), memory_(std::move(memory)), limits_(limits) {}

  Transformer& model_;
  std::unique_ptr<KvMemory> memory_;
  const ExecutorLimits limits_;
};

}  // namespace halfbyte
