#include "model/cpu/cpu_model.h"

#include <utility>

#include "model/cpu/cpu_kv_memory.h"

namespace halfbyte {

bool PacksWeights(const TransformerOptions& options) {
  // fp32 activations and the judge are served from the stored bytes.
  return options.math == MathMode::kDefault && options.arithmetic != Arithmetic::kRef;
}

Result<std::unique_ptr<CpuModel>> CpuModel::Load(const WeightSource& source,
                                                 const TransformerOptions& options,
                                                 const Context& context,
                                                 const LoadListener& on_part) {
  HB_ASSIGN_OR_RETURN(const ExpertPlacement placement, PlaceExperts(source.config(), options));
  const CpuWeightOptions kept{
      .packed = PacksWeights(options),
      .experts = {.arithmetic = options.arithmetic,
                  .round_activations = RoundingOf(options.math) == Rounding::kBf16,
                  .activation_scales = options.activation_scales}};
  HB_ASSIGN_OR_RETURN(CpuWeights weights,
                      CpuWeights::Load(source, kept, placement, context.pool(), on_part));
  return std::unique_ptr<CpuModel>(
      new CpuModel(source.config(), options, context, std::move(weights), placement.ranks() > 1));
}

CpuModel::CpuModel(const ModelConfig& config, const TransformerOptions& options,
                   const Context& context, CpuWeights weights, bool exchanges)
    : config_(config),
      options_(options),
      context_(context),
      rope_(config),
      weights_(std::move(weights)),
      expert_exchange_(
          exchanges ? std::optional<ExpertExchange>(std::in_place, *options.communicator,
                                                    MoeBlock::Limits(config, options.batch_tokens))
                    : std::optional<ExpertExchange>()),
      moe_workspace_(MoeBlock::Limits(config, options.batch_tokens)),
      ops_(context_, config_, rope_, weights_, moe_workspace_,
           expert_exchange_ ? &*expert_exchange_ : nullptr, options.reference_tokens) {
  ops_.Reserve(StepArenaBytes(config_, options_.batch_tokens));
  logits_.Reserve(options_.logit_rows * config_.vocab_size * int64_t{sizeof(float)});
}

Result<std::unique_ptr<KvMemory>> CpuModel::NewMemory(const KvPoolSizes& sizes) const {
  HB_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create(config_, options_.math));
  return CpuKvMemory::Create(layout, sizes);
}

Result<MatrixView<const float>> CpuModel::Run(KvMemory& memory, std::span<const PlacedItem> batch,
                                              const Watchers& watchers) {
  const StepTables tables(batch, rope_);
  const StepShape step = tables.shape();
  logits_.Reset();
  const MatrixView<float> logits =
      logits_.Matrix(step.count(TokenSet::kWanted), config_.vocab_size);
  ops_.Begin(tables, static_cast<CpuKvMemory&>(memory), logits);
  const ProgramOptions program{
      .rounding = RoundingOf(options_.math),
      .whole_last_layer = weights_.moe(config_.layer_count() - 1).routed().observed(),
      .observer = watchers.observer};
  if (watchers.meter == nullptr) {
    HB_RETURN_IF_ERROR(RunDeepseekV4(config_, program, step, ops_));
  } else {
    MeteredOps metered(ops_, memory.layout(), batch, *watchers.meter);
    HB_RETURN_IF_ERROR(RunDeepseekV4(config_, program, step, metered));
  }
  return logits;
}

}  // namespace halfbyte
