// How a model is to be computed, and where.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/model_config.h"
#include "comm/communicator.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "model/math_mode.h"
#include "moe/activation_scales.h"
#include "moe/moe_params.h"

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
  // The GPU that computes the model; absent: the CPU. logit_rows are then the most of one Forward.
  std::optional<int> gpu;
  bool graphs = true;  // on a GPU: steps of generation are captured once and replayed
  double gpu_memory =
      0.9;  // part of the GPU's memory that model and KV cache may take, of all of it

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

}  // namespace halfbyte
