// The routed half of one layer (deepseek-v4.md §2.8): the rule that sends tokens to experts, and
// the experts of this rank. The model (model/moe_block.h) and the C interface (capi/) read its
// parts from a checkpoint alike, here; the C interface also has them from tensors in memory, and
// makes a layer on a GPU of them, too.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/weight_source.h"
#include "moe/activation_scales.h"
#include "moe/expert_placement.h"
#include "moe/moe_layer.h"
#include "moe/router.h"

namespace halfbyte {

struct RoutedLayerOptions {
  Arithmetic arithmetic = Arithmetic::kW4a16;
  bool round_activations = true;
  ActivationScalePolicy activation_scales;  // kW4a4 only
};

// The model whose layers they are, as measured activation scales name it.
MoeModelShape MoeShapeOf(const ModelConfig& config);

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

// A layer that has been read, before it is made for a device.
struct RoutedLayerParts {
  std::string name;  // in errors: "layer 3"
  MoeParams params;
  ExpertPlacement placement;
  std::vector<ExpertWeights> experts;             // by local expert; bytes of somebody else
  std::function<void(LocalExpert)> release = {};  // that expert's stored bytes are not needed
  RoutingRule routing = {};
  ExpertInputScales input_scales = {};  // as stored

  // Reads the experts that the placement gives to this rank; of the others nothing but their input
  // scales, for every rank must come to the same activation scale (moe-layer.md §7). The source
  // must outlive the result. Errors name the tensor or the layer.
  static Result<RoutedLayerParts> Load(const WeightSource& source, int64_t layer,
                                       const RoutedLayerOptions& options,
                                       const ExpertPlacement& placement);
};

// On the CPU.
struct RoutedLayer {
  MoeLayer experts;
  RoutingRule routing;
  ExpertInputScales input_scales;

  // Experts are packed by the pool's threads as MoeLayer::Create says, and the checkpoint's pages
  // of each leave memory once it is: never two copies of a layer.
  static Result<RoutedLayer> Create(RoutedLayerParts parts, ThreadPool& pool);
};

}  // namespace halfbyte
