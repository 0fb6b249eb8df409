// A model on the CPU. Threads share out the loops of a step: each reads its part of the weights,
// and waits for the others at the end of every loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "device/arena.h"
#include "device/context.h"
#include "model/cpu/cpu_ops.h"
#include "model/cpu/cpu_weights.h"
#include "model/device_model.h"
#include "model/transformer_options.h"
#include "model/weight_source.h"
#include "moe/expert_exchange.h"
#include "moe/moe_workspace.h"

namespace halfbyte {

// Whether matrices are rearranged at load; else they are used as they are stored.
bool PacksWeights(const TransformerOptions& options);

class CpuModel : public DeviceModel {
 public:
  // The source and the context's pool must outlive it. Errors: those of CpuWeights::Load, and an
  // unusable placement of experts.
  static Result<std::unique_ptr<CpuModel>> Load(const WeightSource& source,
                                                const TransformerOptions& options,
                                                const Context& context,
                                                const LoadListener& on_part);

  Result<std::unique_ptr<KvMemory>> NewMemory(const KvPoolSizes& sizes) const override;
  Result<MatrixView<const float>> Run(KvMemory& memory, std::span<const PlacedItem> batch,
                                      const Watchers& watchers) override;
  MoeCounters moe_counters(int64_t layer) const override { return weights_.moe(layer).counters(); }
  int64_t workspace_bytes() const override { return ops_.arena_bytes(); }

  // For measurements.
  MoeBlock& moe(int64_t layer) { return weights_.moe(layer); }

 private:
  CpuModel(const ModelConfig& config, const TransformerOptions& options, const Context& context,
           CpuWeights weights, bool exchanges);

  const ModelConfig& config_;
  const TransformerOptions options_;
  const Context context_;
  const RopeTables rope_;
  CpuWeights weights_;
  std::optional<ExpertExchange> expert_exchange_;  // with several ranks
  MoeWorkspace moe_workspace_;
  CpuOps ops_;
  Arena logits_;
};

}  // namespace halfbyte
