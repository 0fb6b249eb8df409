#include "model/transformer.h"

#include <numeric>
#include <utility>

#include "base/progress.h"
#include "model/checkpoint_weights.h"
#include "model/cuda/load_cuda_model.h"

namespace halfbyte {

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
  std::unique_ptr<Transformer> model(new Transformer(std::move(source), options));
  HB_RETURN_IF_ERROR(model->LoadWeights(context));
  return model;
}

Status Transformer::LoadWeights(const Context& context) {
  const std::vector<int64_t> layer_bytes = source_->LayerBytes();
  Progress progress("load weights", std::reduce(layer_bytes.begin(), layer_bytes.end()), "B",
                    options_.on_load);
  const auto advance = [&](int64_t layer) {
    progress.Advance(layer < 0 ? layer_bytes.back() : layer_bytes[static_cast<size_t>(layer)]);
  };
  if (options_.gpu) {
    HB_ASSIGN_OR_RETURN(device_, LoadCudaModel(*source_, options_, context, advance));
    return {};
  }
  HB_ASSIGN_OR_RETURN(auto model, CpuModel::Load(*source_, options_, context, advance));
  cpu_ = model.get();
  device_ = std::move(model);
  return {};
}

Result<std::unique_ptr<KvCache>> Transformer::NewCache(KvCacheLimits limits) const {
  limits.batch_tokens = options_.batch_tokens;
  const KvPoolSizes sizes = limits.Pools(config().sliding_window);
  HB_ASSIGN_OR_RETURN(auto memory, NewMemory(sizes));
  return std::make_unique<KvCache>(std::move(memory), sizes, config().sliding_window);
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
  return device_->Run(memory, batch, {.observer = observer, .meter = meter_});
}

}  // namespace halfbyte
