// A layer of routed experts as it is read, before it is made for a device, and on the CPU: the rule
// that sends tokens to experts, and the experts of this rank (moe-layer.md §2).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/route/router.h"
#include "moe/activation_scales.h"
#include "moe/expert_weights.h"
#include "moe/moe_layer.h"

namespace halfbyte {

// The rule that sends tokens to experts.
struct RoutingRule {
  RouterParams params = {};
  std::vector<float> bias = {};     // [E] of learned routing, or empty
  std::vector<int32_t> table = {};  // [vocabulary, K] of hash routing, or empty

  bool by_token_id() const { return !table.empty(); }
  int64_t vocabulary() const { return std::ssize(table) / params.top_k; }  // of the table

  // logits [tokens, E] -> choices. token_ids [tokens], each in the vocabulary, are read only if
  // the rule is a table.
  RouterCounters Route(const Context& context, MatrixView<const float> logits,
                       std::span<const int32_t> token_ids, MutableRouting routing) const;
};

struct RoutedLayerParts {
  std::string name;  // in errors: "layer 3"
  MoeParams params;
  ExpertPlacement placement;
  std::vector<ExpertWeights> experts;             // by local expert; bytes of somebody else
  std::function<void(LocalExpert)> release = {};  // that expert's stored bytes are not needed
  RoutingRule routing = {};
  ExpertInputScales input_scales = {};  // as stored

  int64_t weight_bytes() const;  // as stored
};

// On the CPU.
struct RoutedLayer {
  MoeLayer experts;
  RoutingRule routing;
  ExpertInputScales input_scales;

  // Experts are packed by the pool's threads as MoeLayer::Create says, and `release` gives up the
  // stored bytes of each once it is: never two copies of a layer.
  static Result<RoutedLayer> Create(RoutedLayerParts parts, ThreadPool& pool);
};

}  // namespace halfbyte
