// The feed-forward half of one layer (deepseek-v4.md §2.8, §2.9) on the CPU, but for the router's
// product: the rule that chooses experts, routed experts, shared expert. With several ranks the
// routed experts are spread over them (moe/expert_exchange.h); every rank does the rest for all
// tokens, so all come to the same bits.
#pragma once

#include "base/result.h"
#include "device/arena.h"
#include "model/load_routed_layer.h"
#include "model/weight_source.h"
#include "moe/expert_exchange.h"
#include "moe/moe_workspace.h"
#include "numerics/rounding.h"

namespace halfbyte {

class MoeBlock {
 public:
  // The routed experts of this rank (moe/routed_layer.h), and the shared one.
  static Result<MoeBlock> Load(const WeightSource& source, int64_t layer,
                               const RoutedLayerOptions& options, const ExpertPlacement& placement,
                               ThreadPool& pool);

  // What a workspace for this model's layers must take.
  static MoeLimits Limits(const ModelConfig& config, int64_t tokens);

  const RoutingRule& routing() const { return routed_.routing; }

  // out [tokens, D] = round(routed + shared) of x: normed hidden [tokens, D], with the choices
  // made. exchange: null if this rank has all experts. Error: another rank failed.
  struct Memory {
    Arena& arena;
    MoeWorkspace& workspace;
    ExpertExchange* exchange;
  };
  Status Run(const Context& context, MatrixView<const float> x, const Routing& routing,
             Rounding rounding, const Memory& memory, MatrixView<float> out);

  const MoeCounters& counters() const { return counters_; }  // since loading; kW4a4 only
  // For measurements: the routed experts, and the input scales that the checkpoint has for them.
  MoeLayer& routed() { return routed_.experts; }
  const MoeLayer& routed() const { return routed_.experts; }
  const ExpertInputScales& input_scales() const { return routed_.input_scales; }

 private:
  MoeBlock(RoutedLayer routed, MoeLayer shared)
      : routed_(std::move(routed)), shared_(std::move(shared)) {}

  RoutedLayer routed_;
  MoeLayer shared_;
  MoeCounters counters_;
};

}  // namespace halfbyte
