// The feed-forward half of one layer (deepseek-v4.md §2.8, §2.9): router, routed experts, shared
// expert. out = round(routed + shared). With several ranks the routed experts are spread over them
// (moe/expert_exchange.h); every rank does the rest for all tokens, so all come to the same bits.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "model/step.h"
#include "model/weight_loader.h"
#include "moe/activation_scales.h"
#include "moe/moe_layer.h"
#include "moe/router.h"

namespace halfbyte {

class MoeBlock {
 public:
  // Loads the routed experts that the placement gives to this rank, and all else. 4-bit experts are
  // packed by the pool's threads.
  static Result<MoeBlock> Load(const WeightLoader& loader, int64_t layer, Arithmetic arithmetic,
                               Rounding rounding, const ExpertPlacement& placement,
                               const ActivationScalePolicy& activation_scales, ThreadPool& pool);

  // What a workspace for this model's layers must take.
  static MoeLimits Limits(const ModelConfig& config, int64_t tokens);
  static MoeModelShape Shape(const ModelConfig& config);

  // x: normed hidden [tokens, D]. Writes out [tokens, D] and the choices made. Error: another rank
  // failed.
  Status Forward(const Step& step, MatrixView<const float> x, MutableRouting routing,
                 MatrixView<float> out);

  const MoeCounters& counters() const { return counters_; }  // since loading; kW4a4 only
  // For measurements: the routed experts, and the input scales that the checkpoint has for them.
  MoeLayer& routed() { return routed_; }
  const ExpertInputScales& input_scales() const { return input_scales_; }

 private:
  MoeBlock(MoeLayer routed, MoeLayer shared)
      : routed_(std::move(routed)), shared_(std::move(shared)) {}

  RouterParams router_;
  WeightMatrix router_weight_;  // [E, D]
  std::vector<float> bias_;     // [E], learned routing
  std::vector<int32_t> table_;  // [vocab, K], hash routing
  MoeLayer routed_;
  MoeLayer shared_;
  ExpertInputScales input_scales_;
  MoeCounters counters_;
};

}  // namespace halfbyte
