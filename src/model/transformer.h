// The whole model: DeepSeek-V4's forward pass (deepseek-v4.md §2) over a ragged batch of sequences.
//
//   HB_ASSIGN_OR_RETURN(auto model, Transformer::Load(dir, options, context));
//   HB_ASSIGN_OR_RETURN(auto cache, model->NewCache({.context_tokens = 4096}));
//   HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
//   HB_ASSIGN_OR_RETURN(auto logits, model->Forward(*cache, {{&sequence, prompt}}));
//
// A token's logits depend on its sequence alone, not on how the prompt was cut into chunks, nor on
// other sequences, threads or instruction set: the bits are equal. (Those of a GPU are others than
// those of a CPU.)
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "base/result.h"
#include "checkpoint/model_checkpoint.h"
#include "device/context.h"
#include "model/batch_item.h"
#include "model/cpu/cpu_model.h"
#include "model/device_model.h"
#include "model/kv_cache.h"
#include "model/transformer_options.h"
#include "model/weight_source.h"

namespace halfbyte {

class Transformer {
 public:
  // Errors name the file, tensor or field. Draft stages (mtp.*) are not loaded. What loading takes
  // says model_memory.h; nobody asks for it here.
  static Result<std::unique_ptr<Transformer>> Load(ModelCheckpoint checkpoint,
                                                   const TransformerOptions& options,
                                                   const Context& context);
  static Result<std::unique_ptr<Transformer>> Load(const std::filesystem::path& directory,
                                                   const TransformerOptions& options,
                                                   const Context& context);

  // From any source of weights.
  static Result<std::unique_ptr<Transformer>> Load(std::unique_ptr<const WeightSource> source,
                                                   const TransformerOptions& options,
                                                   const Context& context);

  const ModelConfig& config() const { return source_->config(); }
  const TransformerOptions& options() const { return options_; }

  // A cache in the formats of this model's math, where this model is. batch_tokens is set from the
  // options.
  Result<std::unique_ptr<KvCache>> NewCache(KvCacheLimits limits) const;

  // Appends each item's tokens to its sequence. Returns logits [rows, vocab] in fp32, valid until
  // the next call: one row for each token that was asked for, in batch order. Errors (nothing is
  // appended then): no tokens, too many, an id outside the vocabulary, a position beyond the
  // model's context, no room in the cache; the device or another rank failed (the model is of no
  // use then).
  Result<MatrixView<const float>> Forward(KvCache& cache, std::span<const BatchItem> batch,
                                          LayerObserver* observer = nullptr);
  // The same into rows whose pages the caller has reserved, and advances himself. NewMemory makes
  // them.
  Result<std::unique_ptr<KvMemory>> NewMemory(const KvPoolSizes& sizes) const {
    return device_->NewMemory(sizes);
  }
  Result<MatrixView<const float>> Forward(KvMemory& memory, std::span<const PlacedItem> batch,
                                          LayerObserver* observer = nullptr);

  // DeviceModel's.
  MoeCounters moe_counters(int64_t layer) const { return device_->moe_counters(layer); }
  int64_t workspace_bytes() const { return device_->workspace_bytes(); }
  // For measurements; cpu() is null if the model is on a GPU.
  CpuModel* cpu() { return cpu_; }
  DeviceModel& device() { return *device_; }
  const WeightSource& source() const { return *source_; }
  // Every later Forward adds what its operations took, until null is set. Must outlive them.
  void set_meter(OperationMeter* meter) { meter_ = meter; }

 private:
  Transformer(std::unique_ptr<const WeightSource> source, const TransformerOptions& options)
      : source_(std::move(source)), options_(options) {}
  Status LoadWeights(const Context& context);
  Status CheckBatch(std::span<const PlacedItem> batch) const;

  std::unique_ptr<const WeightSource> source_;
  const TransformerOptions options_;
  std::unique_ptr<DeviceModel> device_;
  CpuModel* cpu_ = nullptr;
  OperationMeter* meter_ = nullptr;
};

}  // namespace halfbyte
