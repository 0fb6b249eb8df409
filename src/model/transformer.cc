#include "model/transformer.h"

#include <numeric>
#include <utility>

#include "model/checkpoint_weights.h"
#include "model/model_memory.h"

namespace halfbyte {

Transformer::Transformer(std::unique_ptr<const WeightSource> source,
                         const TransformerOptions& options, const Context& context)
    : source_(std::move(source)), options_(options), context_(context), rope_(config()) {}

Result<std::unique_ptr<Transformer>> Transformer::Load(const std::filesystem::path& directory,
                                                       const TransformerOptions& options,
                                                       const Context& context) {
  HB_ASSIGN_OR_RETURN(ModelCheckpoint checkpoint, ModelCheckpoint::Open(directory));
  return Load(std::move(checkpoint), options, context);
}

Result<std::unique_ptr<Transformer>> Transformer::Load(ModelCheckpoint checkpoint,
                                                       const TransformerOptions& options,
                                                       const Context& context) {
  return Load(std::make_unique<CheckpointWeights>(std::move(checkpoint)), options, context);
}

Result<std::unique_ptr<Transformer>> Transformer::Load(std::unique_ptr<const WeightSource> source,
                                                       const TransformerOptions& options,
                                                       const Context& context) {
  std::unique_ptr<Transformer> model(new Transformer(std::move(source), options, context));
  HB_RETURN_IF_ERROR(model->LoadWeights());
  return model;
}

Result<ExpertPlacement> PlaceExperts(const ModelConfig& config, const TransformerOptions& options) {
  const auto experts = static_cast<int32_t>(config.routed_experts);
  if (options.communicator == nullptr) return ExpertPlacement::Single(experts);
  const int32_t ranks = options.communicator->size();
  const int32_t rank = options.communicator->rank();
  const std::vector<int32_t>& owners = options.expert_owners;
  if (owners.empty()) return ExpertPlacement::Balanced(experts, ranks, rank);
  if (std::ssize(owners) != experts) {
    return MakeError("a placement of {} experts for a model with {}", owners.size(), experts);
  }
  return ExpertPlacement::Table(owners, ranks, rank);
}

bool PacksWeights(const TransformerOptions& options) {
  // fp32 activations and the judge are served from the stored bytes.
  return options.math == MathMode::kDefault && options.arithmetic != Arithmetic::kRef;
}

Result<KvMemory> NewKvMemory(const ModelConfig& config, MathMode math, const KvPoolSizes& sizes) {
  const bool exact = math == MathMode::kFp32;
  return KvMemory::Create(config, exact ? KvFormat::kF32 : KvFormat::kFp8,
                          exact ? IndexFormat::kF32 : IndexFormat::kMxfp4, sizes);
}

Status Transformer::LoadWeights() {
  const std::vector<int64_t> layer_bytes = source_->LayerBytes();
  Progress progress("load weights", std::reduce(layer_bytes.begin(), layer_bytes.end()), "B",
                    options_.on_load);
  HB_ASSIGN_OR_RETURN(const ExpertPlacement placement, PlaceExperts(config(), options_));
  const CpuWeightOptions kept{
      .packed = PacksWeights(options_),
      .experts = {.arithmetic = options_.arithmetic,
                  .round_activations = RoundingOf(options_.math) == Rounding::kBf16,
                  .activation_scales = options_.activation_scales}};
  const auto advance = [&](int64_t layer) {
    progress.Advance(layer < 0 ? layer_bytes.back() : layer_bytes[static_cast<size_t>(layer)]);
  };
  HB_ASSIGN_OR_RETURN(weights_,
                      CpuWeights::Load(*source_, kept, placement, context_.pool(), advance));
  const MoeLimits limits = MoeBlock::Limits(config(), options_.batch_tokens);
  if (placement.ranks() > 1) expert_exchange_.emplace(*options_.communicator, limits);
  moe_workspace_.emplace(limits);
  ops_.emplace(context_, config(), rope_, *weights_, *moe_workspace_,
               expert_exchange_ ? &*expert_exchange_ : nullptr, options_.reference_tokens);
  ops_->Reserve(StepArenaBytes(config(), options_.batch_tokens));
  logits_.Reserve(options_.logit_rows * config().vocab_size * int64_t{sizeof(float)});
  return {};
}

Result<std::unique_ptr<KvCache>> Transformer::NewCache(KvCacheLimits limits) const {
  limits.batch_tokens = options_.batch_tokens;
  const bool exact = options_.math == MathMode::kFp32;
  return KvCache::Create(config(), exact ? KvFormat::kF32 : KvFormat::kFp8,
                         exact ? IndexFormat::kF32 : IndexFormat::kMxfp4, limits);
}

Result<KvMemory> Transformer::NewMemory(const KvPoolSizes& sizes) const {
  return NewKvMemory(config(), options_.math, sizes);
}

Status Transformer::CheckBatch(std::span<const PlacedItem> batch) const {
  int64_t total = 0;
  for (const PlacedItem& item : batch) {
    if (item.tokens.empty()) return MakeError("no tokens: a prompt needs at least one");
    total += std::ssize(item.tokens);
    for (const int32_t id : item.tokens) {
      if (id < 0 || id >= config().vocab_size) {
        return MakeError("token id {} is outside the vocabulary of {} ids", id,
                         config().vocab_size);
      }
    }
    const int64_t end = item.pages->position + std::ssize(item.tokens);
    if (end > config().max_position_embeddings) {
      return MakeError("{} tokens do not fit the model's context of {}", end,
                       config().max_position_embeddings);
    }
  }
  if (total > options_.batch_tokens) {
    return MakeError("a batch of {} tokens, at most {} are allowed in one call", total,
                     options_.batch_tokens);
  }
  return {};
}

Result<MatrixView<const float>> Transformer::Forward(KvCache& cache,
                                                     std::span<const BatchItem> batch,
                                                     LayerObserver* observer) {
  std::vector<PlacedItem> placed;
  for (const BatchItem& item : batch) {
    placed.push_back({&item.sequence->pages(), item.tokens, item.logits});
  }
  HB_RETURN_IF_ERROR(CheckBatch(placed));  // before pages are taken
  for (const BatchItem& item : batch) {
    HB_RETURN_IF_ERROR(cache.pages().Reserve(*item.sequence, std::ssize(item.tokens)));
  }
  HB_ASSIGN_OR_RETURN(const auto logits, Forward(cache.memory(), placed, observer));
  for (const BatchItem& item : batch) {
    cache.pages().Advance(*item.sequence, std::ssize(item.tokens));
  }
  return logits;
}

Result<MatrixView<const float>> Transformer::Forward(KvMemory& memory,
                                                     std::span<const PlacedItem> batch,
                                                     LayerObserver* observer) {
  HB_RETURN_IF_ERROR(CheckBatch(batch));
  const StepTables tables(batch, rope_);
  const StepShape step = tables.shape();
  logits_.Reset();
  const MatrixView<float> logits =
      logits_.Matrix(step.count(TokenSet::kWanted), config().vocab_size);
  ops_->Begin(tables, memory, logits);
  const ProgramOptions program{
      .rounding = RoundingOf(options_.math),
      .whole_last_layer = weights_->moe(config().layer_count() - 1).routed().observed(),
      .observer = observer};
  if (meter_ == nullptr) {
    HB_RETURN_IF_ERROR(RunDeepseekV4(config(), program, step, *ops_));
  } else {
    MeteredOps metered(*ops_, memory, batch, *meter_);
    HB_RETURN_IF_ERROR(RunDeepseekV4(config(), program, step, metered));
  }
  return logits;
}

}  // namespace halfbyte
