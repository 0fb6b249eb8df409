// The feed-forward half of one layer (deepseek-v4.md §2.8, §2.9): router, routed experts, shared
// expert. out = round(routed + shared). With several ranks the routed experts are spread over them
// (moe/expert_exchange.h); every rank does the rest for all tokens, so all come to the same bits.
#pragma once

#include "base/result.h"
#include "model/projection.h"
#include "model/routed_layer.h"
#include "model/step.h"
#include "model/weight_loader.h"

namespace halfbyte {

class MoeBlock {
 public:
  // The routed experts of this rank (routed_layer.h), and all else.
  static Result<MoeBlock> Load(const WeightLoader& loader, int64_t layer,
                               const RoutedLayerOptions& options, const ExpertPlacement& placement,
                               ThreadPool& pool);

  // What a workspace for this model's layers must take.
  static MoeLimits Limits(const ModelConfig& config, int64_t tokens);

  // x: normed hidden [tokens, D]. Writes out [tokens, D] and the choices made. Error: another rank
  // failed.
  Status Forward(const Step& step, MatrixView<const float> x, MutableRouting routing,
                 MatrixView<float> out);

  const MoeCounters& counters() const { return counters_; }  // since loading; kW4a4 only
  // For measurements: the routed experts, and the input scales that the checkpoint has for them.
  MoeLayer& routed() { return routed_.experts; }
  const ExpertInputScales& input_scales() const { return routed_.input_scales; }

 private:
  MoeBlock(RoutedLayer routed, MoeLayer shared)
      : routed_(std::move(routed)), shared_(std::move(shared)) {}

  RoutedLayer routed_;
  Projection router_weight_;  // [E, D]
  MoeLayer shared_;
  MoeCounters counters_;
};

}  // namespace halfbyte
