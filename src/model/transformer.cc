#include "model/transformer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "model/model_memory.h"
#include "model/rope_config.h"

namespace halfbyte {
namespace {

// What the checkpoint holds for each layer; the last element is of the modules outside of layers.
std::vector<int64_t> LayerBytes(const ModelCheckpoint& checkpoint) {
  const int64_t layers = checkpoint.config().layer_count();
  std::vector<int64_t> bytes(static_cast<size_t>(layers) + 1);
  for (const auto& [key, tensors] : checkpoint.modules()) {
    const bool global = key.scope == Scope::kGlobal;
    if (key.scope == Scope::kMtp || (!global && key.layer >= layers)) continue;
    int64_t& sum = global ? bytes.back() : bytes[static_cast<size_t>(key.layer)];
    for (const CheckpointTensor& part : tensors.parts) {
      if (part.info != nullptr) sum += part.info->bytes;
    }
  }
  return bytes;
}

int64_t CountLogitRows(const PlacedItem& item) {
  return LogitsRows(item.logits, std::ssize(item.tokens));
}

int64_t CountLogitRows(std::span<const PlacedItem> batch) {
  int64_t rows = 0;
  for (const PlacedItem& item : batch) rows += CountLogitRows(item);
  return rows;
}

}  // namespace

Transformer::Transformer(ModelCheckpoint checkpoint, const TransformerOptions& options,
                         const Context& context)
    : checkpoint_(std::move(checkpoint)),
      options_(options),
      context_(context),
      rounding_(options.math == MathMode::kFp32 ? Rounding::kNone : Rounding::kBf16) {}

Result<std::unique_ptr<Transformer>> Transformer::Load(const std::filesystem::path& directory,
                                                       const TransformerOptions& options,
                                                       const Context& context) {
  HB_ASSIGN_OR_RETURN(ModelCheckpoint checkpoint, ModelCheckpoint::Open(directory));
  return Load(std::move(checkpoint), options, context);
}

Result<std::unique_ptr<Transformer>> Transformer::Load(ModelCheckpoint checkpoint,
                                                       const TransformerOptions& options,
                                                       const Context& context) {
  std::unique_ptr<Transformer> model(new Transformer(std::move(checkpoint), options, context));
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
  const std::vector<int64_t> layer_bytes = LayerBytes(checkpoint_);
  Progress progress("load weights", std::reduce(layer_bytes.begin(), layer_bytes.end()), "B",
                    options_.on_load);
  const WeightLoader loader(checkpoint_, PacksWeights(options_) ? &context_.pool() : nullptr);
  const ModelConfig& c = config();
  const int64_t n = c.hc_streams;
  const auto global = [](Module module) { return ModuleKey::Global(module); };
  HB_ASSIGN_OR_RETURN(embedding_,
                      loader.Matrix(global(Module::kEmbed), c.vocab_size, c.hidden_size));
  HB_ASSIGN_OR_RETURN(head_,
                      Projection::Load(loader, global(Module::kHead), c.vocab_size, c.hidden_size));
  HB_ASSIGN_OR_RETURN(norm_, loader.Vector(global(Module::kNorm), c.hidden_size));
  HB_ASSIGN_OR_RETURN(head_hc_, HyperConnectionWeights::Load(
                                    loader, global(Module::kHcHeadFn), global(Module::kHcHeadBase),
                                    global(Module::kHcHeadScale), n, /*scales=*/1));
  progress.Advance(layer_bytes.back());
  window_frequencies_ = FrequenciesOf(c, AttentionKind::kWindow);
  compressed_frequencies_ = FrequenciesOf(c, AttentionKind::kC4);
  HB_ASSIGN_OR_RETURN(const ExpertPlacement placement, PlaceExperts(c, options_));
  const RoutedLayerOptions experts{.arithmetic = options_.arithmetic,
                                   .round_activations = rounding_ == Rounding::kBf16,
                                   .activation_scales = options_.activation_scales};
  for (int64_t l = 0; l < c.layer_count(); ++l) {
    const auto key = [l](Module module) { return ModuleKey::Layer(l, module); };
    HB_ASSIGN_OR_RETURN(auto attention_norm,
                        loader.Vector(key(Module::kAttentionNorm), c.hidden_size));
    HB_ASSIGN_OR_RETURN(auto ffn_norm, loader.Vector(key(Module::kFfnNorm), c.hidden_size));
    HB_ASSIGN_OR_RETURN(auto attention_hc,
                        HyperConnectionWeights::Load(
                            loader, key(Module::kHcAttentionFn), key(Module::kHcAttentionBase),
                            key(Module::kHcAttentionScale), (2 + n) * n, /*scales=*/3));
    HB_ASSIGN_OR_RETURN(auto ffn_hc, HyperConnectionWeights::Load(
                                         loader, key(Module::kHcFfnFn), key(Module::kHcFfnBase),
                                         key(Module::kHcFfnScale), (2 + n) * n, /*scales=*/3));
    HB_ASSIGN_OR_RETURN(auto attention, AttentionBlock::Load(loader, l));
    HB_ASSIGN_OR_RETURN(auto moe, MoeBlock::Load(loader, l, experts, placement, context_.pool()));
    layers_.push_back({std::move(attention_norm), std::move(ffn_norm), std::move(attention_hc),
                       std::move(ffn_hc), std::move(attention), std::move(moe)});
    progress.Advance(layer_bytes[static_cast<size_t>(l)]);
  }
  const MoeLimits limits = MoeBlock::Limits(c, options_.batch_tokens);
  if (placement.ranks() > 1) expert_exchange_.emplace(*options_.communicator, limits);
  moe_workspace_.emplace(limits);
  arena_.Reserve(StepArenaBytes(c, options_.batch_tokens));
  logits_.Reserve(options_.logit_rows * c.vocab_size * int64_t{sizeof(float)});
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

Step Transformer::MakeStep(const KvMemory& memory, std::span<const PlacedItem> batch) {
  Step step{.context = &context_,
            .cache = &memory,
            .arena = &arena_,
            .moe_workspace = &*moe_workspace_,
            .expert_exchange = expert_exchange_ ? &*expert_exchange_ : nullptr,
            .rounding = rounding_,
            .reference_tokens = options_.reference_tokens};
  std::vector<int64_t> positions;
  for (const PlacedItem& item : batch) {
    const int64_t count = std::ssize(item.tokens);
    step.sequences.push_back(item.pages);
    step.spans.push_back({step.tokens, count, item.position()});
    step.token_ids.insert(step.token_ids.end(), item.tokens.begin(), item.tokens.end());
    for (int64_t i = 0; i < count; ++i) positions.push_back(item.position() + i);
    step.tokens += count;
  }
  step.window_angles.Set(window_frequencies_, positions);
  step.compressed_angles.Set(compressed_frequencies_, positions);
  return step;
}

Step Transformer::MakeWantedStep(const Step& step, std::span<const PlacedItem> batch) {
  std::vector<PlacedItem> items;
  std::vector<int64_t> rows;
  for (size_t i = 0; i < batch.size(); ++i) {
    const PlacedItem& item = batch[i];
    const int64_t count = CountLogitRows(item);
    if (count == 0) continue;
    const int64_t before = std::ssize(item.tokens) - count;
    items.push_back({item.pages, item.tokens.last(static_cast<size_t>(count)), item.logits,
                     item.offset + before});
    for (int64_t t = 0; t < count; ++t) rows.push_back(step.spans[i].first + before + t);
  }
  Step wanted = MakeStep(*step.cache, items);
  wanted.rows = std::move(rows);
  return wanted;
}

Result<MatrixView<const float>> Transformer::Forward(KvCache& cache,
                                                     std::span<const BatchItem> batch,
                                                     LayerProbe* probe) {
  std::vector<PlacedItem> placed;
  for (const BatchItem& item : batch) {
    placed.push_back({&item.sequence->pages(), item.tokens, item.logits});
  }
  HB_RETURN_IF_ERROR(CheckBatch(placed));  // before pages are taken
  for (const BatchItem& item : batch) {
    HB_RETURN_IF_ERROR(cache.pages().Reserve(*item.sequence, std::ssize(item.tokens)));
  }
  HB_ASSIGN_OR_RETURN(const auto logits, Forward(cache.memory(), placed, probe));
  for (const BatchItem& item : batch) {
    cache.pages().Advance(*item.sequence, std::ssize(item.tokens));
  }
  return logits;
}

Result<MatrixView<const float>> Transformer::Forward(KvMemory& memory,
                                                     std::span<const PlacedItem> batch,
                                                     LayerProbe* probe) {
  HB_RETURN_IF_ERROR(CheckBatch(batch));
  logits_.Reset();
  const MatrixView<float> logits = logits_.Matrix(CountLogitRows(batch), config().vocab_size);
  const Step step = MakeStep(memory, batch);
  HB_ASSIGN_OR_RETURN(const auto x, RunLayers(step, batch, probe));
  head_.Forward(step, x, logits);
  return logits;
}

Result<MatrixView<const float>> Transformer::RunLayers(const Step& step,
                                                       std::span<const PlacedItem> batch,
                                                       LayerProbe* probe) {
  arena_.Reset();
  const int64_t n = config().hc_streams;
  const auto matrix = [&](int64_t columns) { return arena_.Matrix(step.tokens, columns); };
  const BlockRows rows{.streams = matrix(n * config().hidden_size),
                       .x = matrix(config().hidden_size),
                       .post = matrix(n),
                       .comb = matrix(n * n),
                       .mix = matrix((2 + n) * n)};
  EmbedTokens(context_, embedding_, step.token_ids, n, rounding_, rows.streams);
  step.ForTokens([&](int64_t first, int64_t count) {
    BlockInput(step, layers_[0].attention_hc, layers_[0].attention_norm, rows, first, count);
  });
  // In the last layer only tokens with logits have to get beyond the cache, unless somebody looks.
  const bool all_wanted = CountLogitRows(batch) == step.tokens;
  const Step fewer = all_wanted ? Step() : MakeWantedStep(step, batch);
  const Step& wanted = all_wanted ? step : fewer;
  const int64_t last = config().layer_count() - 1;
  const bool looked_at = probe != nullptr || layers_.back().moe.routed().observed();
  for (int64_t l = 0; l <= last; ++l) {
    HB_RETURN_IF_ERROR(RunLayer(step, l < last || looked_at ? step : wanted, l, rows, probe));
  }
  return HeadInput(wanted,
                   looked_at ? wanted.Keep(rows.streams) : rows.streams.Rows(0, wanted.tokens));
}

Transformer::BlockRows Transformer::BlockRows::Keep(const Step& step) const {
  return {step.Keep(streams), x.Rows(0, step.tokens), step.Keep(post), step.Keep(comb),
          mix.Rows(0, step.tokens)};
}

// Of tokens [first, first + count).
void Transformer::BlockInput(const Step& step, const HyperConnectionWeights& hc,
                             const std::vector<float>& norm, const BlockRows& rows, int64_t first,
                             int64_t count) const {
  const auto of = [&](MatrixView<float> all) { return all.Rows(first, count); };
  HcPre(*step.context, hc.view(), of(rows.streams), rounding_, of(rows.mix), of(rows.x),
        of(rows.post), of(rows.comb));
  RmsNorm(*step.context, of(rows.x), norm.data(), static_cast<float>(config().rms_norm_eps),
          rounding_, of(rows.x));
}

Status Transformer::RunLayer(const Step& step, const Step& queries, int64_t index,
                             const BlockRows& all, LayerProbe* probe) {
  Arena& arena = *step.arena;
  const Arena::Scope scope(arena);
  const std::span<Layer> next = std::span(layers_).subspan(static_cast<size_t>(index) + 1);
  Layer& layer = layers_[static_cast<size_t>(index)];
  const int64_t tokens = queries.tokens;
  const MatrixView<float> attended = arena.Matrix(tokens, config().hidden_size);
  const MatrixView<float> mixed = arena.Matrix(tokens, config().hidden_size);
  const MutableRouting routing{arena.Matrix<int32_t>(tokens, config().experts_per_token),
                               arena.Matrix(tokens, config().experts_per_token)};
  layer.attention.Forward(step, queries, all.x, attended);
  if (tokens == 0) return {};
  const BlockRows rows = all.Keep(queries);
  // A block's output goes into the streams, and while they are in the cache the next block's input
  // comes from them.
  const auto add = [&](MatrixView<const float> y, int64_t first, int64_t count) {
    HcPost(*step.context, y.Rows(first, count), rows.post.Rows(first, count),
           rows.comb.Rows(first, count), rounding_, rows.streams.Rows(first, count));
  };

  queries.ForTokens([&](int64_t first, int64_t count) {
    add(attended, first, count);
    BlockInput(queries, layer.ffn_hc, layer.ffn_norm, rows, first, count);
  });
  HB_RETURN_IF_ERROR(layer.moe.Forward(queries, rows.x, routing, mixed));
  queries.ForTokens([&](int64_t first, int64_t count) {
    add(mixed, first, count);
    if (next.empty()) return;
    BlockInput(queries, next[0].attention_hc, next[0].attention_norm, rows, first, count);
  });

  if (probe != nullptr) probe->OnLayer(index, attended, mixed, routing, rows.streams);
  return {};
}

MatrixView<const float> Transformer::HeadInput(const Step& step,
                                               MatrixView<const float> streams) const {
  const MatrixView<float> mix = step.arena->Matrix(step.tokens, config().hc_streams);
  const MatrixView<float> x = step.arena->Matrix(step.tokens, config().hidden_size);
  HcHead(*step.context, head_hc_.view(), streams, rounding_, mix, x);
  RmsNorm(*step.context, x, norm_.data(), static_cast<float>(config().rms_norm_eps), rounding_, x);
  return x;
}

}  // namespace halfbyte
