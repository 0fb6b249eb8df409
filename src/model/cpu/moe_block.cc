#include "model/cpu/moe_block.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"

namespace halfbyte {
namespace {

bool IsFourBit(const StoredWeight& w) {
  return w.matrix.format == WeightFormat::kNvfp4 || w.matrix.format == WeightFormat::kMxfp4;
}

Result<MoeLayer> LoadShared(const WeightSource& source, int64_t layer, MoeParams params,
                            const std::string& name, ThreadPool& pool) {
  const auto stored = [&](Module module) { return source.Stored(ModuleKey::Layer(layer, module)); };
  HB_ASSIGN_OR_RETURN(const StoredWeight gate, stored(Module::kSharedGate));
  HB_ASSIGN_OR_RETURN(const StoredWeight up, stored(Module::kSharedUp));
  HB_ASSIGN_OR_RETURN(const StoredWeight down, stored(Module::kSharedDown));
  params.intermediate = source.config().shared_size();
  params.gate_up_input_scale.reset();
  params.down_input_scale.reset();
  // The 4-bit arithmetic is for 4-bit weights; a shared expert in FP8 or BF16 keeps bf16
  // activations.
  if (IsFourBitOnly(params.arithmetic) && !(IsFourBit(gate) && IsFourBit(up) && IsFourBit(down))) {
    params.arithmetic = Arithmetic::kW4a16;
  }
  const auto release = [&](LocalExpert) {
    for (const StoredWeight* weight : {&gate, &up, &down}) weight->DropPages();
  };
  return MoeLayer::Create(params, ExpertPlacement::Single(1),
                          {{gate.matrix, up.matrix, down.matrix}}, name + " shared expert",
                          {.pool = &pool, .release = release});
}

}  // namespace

Result<MoeBlock> MoeBlock::Load(const WeightSource& source, int64_t layer,
                                const RoutedLayerOptions& options, const ExpertPlacement& placement,
                                ThreadPool& pool) {
  HB_ASSIGN_OR_RETURN(RoutedLayerParts parts, LoadRoutedLayer(source, layer, options, placement));
  HB_ASSIGN_OR_RETURN(RoutedLayer routed, RoutedLayer::Create(std::move(parts), pool));
  HB_ASSIGN_OR_RETURN(MoeLayer shared, LoadShared(source, layer, routed.experts.params(),
                                                  "layer " + std::to_string(layer), pool));
  return MoeBlock(std::move(routed), std::move(shared));
}

MoeLimits MoeBlock::Limits(const ModelConfig& config, int64_t tokens) {
  return {.tokens = tokens,
          .top_k = config.experts_per_token,
          .experts = config.routed_experts,
          .hidden = config.hidden_size,
          .intermediate = std::max(config.expert_size, config.shared_size())};
}

Status MoeBlock::Run(const Context& context, MatrixView<const float> x, const Routing& routing,
                     Rounding rounding, const Memory& memory, MatrixView<float> out) {
  const Arena::Scope scope(memory.arena);
  const MatrixView<float> shared = memory.arena.Matrix(x.rows, out.columns);
  if (memory.exchange == nullptr) {
    routed_.experts.Run(context, x, routing, out, memory.workspace, &counters_);
  } else {
    HB_RETURN_IF_ERROR(memory.exchange->Run(context, routed_.experts, x, routing, out,
                                            memory.workspace, &counters_));
  }
  shared_.RunDense(context, x, shared, memory.workspace, &counters_);
  AddRows(context, shared, rounding, out);
  return {};
}

}  // namespace halfbyte
