#include "moe/routed_layer.h"

#include <utility>

namespace halfbyte {

int64_t RoutedLayerParts::weight_bytes() const {
  int64_t sum = 0;
  for (const ExpertWeights& e : experts) sum += e.gate.bytes() + e.up.bytes() + e.down.bytes();
  return sum;
}

Result<RoutedLayer> RoutedLayer::Create(RoutedLayerParts parts, ThreadPool& pool) {
  const auto with_rule = [&](MoeLayer&& layer) {
    return RoutedLayer{std::move(layer), std::move(parts.routing), std::move(parts.input_scales)};
  };
  return MoeLayer::Create(parts.params, std::move(parts.placement), std::move(parts.experts),
                          parts.name, {.pool = &pool, .release = std::move(parts.release)})
      .map(with_rule);
}

RouterCounters RoutingRule::Route(const Context& context, MatrixView<const float> logits,
                                  std::span<const int32_t> token_ids,
                                  MutableRouting routing) const {
  if (!by_token_id()) return halfbyte::Route(context, params, logits, bias, routing);
  return RouteByTable(context, params, logits, {table.data(), vocabulary(), params.top_k},
                      token_ids, routing);
}

}  // namespace halfbyte
