// The whole model: DeepSeek-V4's forward pass (deepseek-v4.md §2) over a ragged batch of sequences.
//
//   HB_ASSIGN_OR_RETURN(auto model, Transformer::Load(dir, options, context));
//   HB_ASSIGN_OR_RETURN(auto cache, model->NewCache({.context_tokens = 4096}));
//   HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
//   HB_ASSIGN_OR_RETURN(auto logits, model->Forward(*cache, {{&sequence, prompt}}));
//
// A token's logits depend on its sequence alone, not on how the prompt was cut into chunks, nor on
// other sequences, threads or instruction set: the bits are equal.
//
// Threads share out the loops of a step: each reads its part of the weights, and waits for the
// others at the end of every loop.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/model_checkpoint.h"
#include "comm/communicator.h"
#include "device/arena.h"
#include "device/context.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "model/batch_item.h"
#include "model/cpu/cpu_ops.h"
#include "model/cpu/cpu_weights.h"
#include "model/kv_cache.h"
#include "model/math_mode.h"
#include "model/metered_ops.h"
#include "model/program/deepseek_v4.h"
#include "model/weight_source.h"
#include "moe/activation_scales.h"
#include "moe/expert_exchange.h"
#include "moe/moe_workspace.h"

namespace halfbyte {

struct TransformerOptions {
  MathMode math = MathMode::kDefault;
  Arithmetic arithmetic = Arithmetic::kW4a16;
  ActivationScalePolicy activation_scales;  // kW4a4 only
  int64_t batch_tokens = 512;               // most tokens of one Forward
  int64_t logit_rows = 1;                   // rows of logits that memory is kept for
  // Not 0: the length of a whole prompt whose logits will be compared with PyTorch's; equal indexer
  // scores are then chosen as PyTorch chooses them (kernels/indexer).
  int64_t reference_tokens = 0;

  // Experts over ranks (docs/ranks.md). With a communicator of several ranks, each loads its own
  // experts only, all call Load and Forward alike, and all get the same logits, to the bit those of
  // one rank. Must outlive the model. Null: this process has all experts.
  Communicator* communicator = nullptr;
  // The rank of every expert, the same in all layers; empty: contiguous ranges of equal size.
  std::vector<int32_t> expert_owners;
  // Told while weights load, after each layer: bytes of the checkpoint. May be null.
  ProgressListener on_load;
};

// Experts of this rank.
Result<ExpertPlacement> PlaceExperts(const ModelConfig& config, const TransformerOptions& options);

// Whether matrices are rearranged at load; else they are used as they are stored.
bool PacksWeights(const TransformerOptions& options);

// The cache of a model in the formats of its math.
Result<KvMemory> NewKvMemory(const ModelConfig& config, MathMode math, const KvPoolSizes& sizes);

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

  // A cache in the formats of this model's math mode. batch_tokens is set from the options.
  Result<std::unique_ptr<KvCache>> NewCache(KvCacheLimits limits) const;

  // Appends each item's tokens to its sequence. Returns logits [rows, vocab] in fp32, valid until
  // the next call: one row for each token that was asked for, in batch order. Errors (nothing is
  // appended then): no tokens, too many, an id outside the vocabulary, a position beyond the
  // model's context, no room in the cache, another rank failed (the model is of no use then).
  Result<MatrixView<const float>> Forward(KvCache& cache, std::span<const BatchItem> batch,
                                          LayerObserver* observer = nullptr);
  // The same into rows whose pages the caller has reserved, and advances himself. NewMemory makes
  // them, in the formats of this model's math mode.
  Result<KvMemory> NewMemory(const KvPoolSizes& sizes) const;
  Result<MatrixView<const float>> Forward(KvMemory& memory, std::span<const PlacedItem> batch,
                                          LayerObserver* observer = nullptr);

  // What the activation quantizers of one layer saw since loading; all zero unless w4a4.
  const MoeCounters& moe_counters(int64_t layer) const { return weights_->moe(layer).counters(); }
  MoeBlock& moe(int64_t layer) { return weights_->moe(layer); }
  int64_t arena_bytes() const { return ops_->arena_bytes(); }
  const WeightSource& source() const { return *source_; }
  // Every later Forward adds what its operations took, until null is set. Must outlive them.
  void set_meter(OperationMeter* meter) { meter_ = meter; }

 private:
  Transformer(std::unique_ptr<const WeightSource> source, const TransformerOptions& options,
              const Context& context);
  Status LoadWeights();
  Status CheckBatch(std::span<const PlacedItem> batch) const;

  std::unique_ptr<const WeightSource> source_;
  const TransformerOptions options_;
  const Context context_;
  const RopeTables rope_;
  std::optional<CpuWeights> weights_;
  std::optional<ExpertExchange> expert_exchange_;  // with several ranks
  std::optional<MoeWorkspace> moe_workspace_;
  std::optional<CpuOps> ops_;
  Arena logits_;
  OperationMeter* meter_ = nullptr;
};

}  // namespace halfbyte
