#include "measure/model_bench_plan.h"

#include <algorithm>
#include <numeric>

#include "base/progress.h"
#include "checkpoint/inventory.h"
#include "measure/packed_gemm.h"
#include "model/model_memory.h"
#include "model/synthetic_weights.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

int64_t StoredBytes(const WeightSource& source, const ModuleKey& key) {
  const auto stored = source.Unread(key);
  return stored ? stored->matrix.bytes() : 0;
}

// What is read where it is stored, and so stays in memory.
int64_t InPlaceBytes(const WeightSource& source) {
  int64_t bytes = 0;
  for (const ModuleKey& key : RequiredModules(source.config())) {
    if (IsReadInPlace(key.module)) bytes += StoredBytes(source, key);
  }
  return bytes;
}

// The most that is there as stored before it is packed: a layer's experts, or the head.
int64_t MakingBytes(const WeightSource& source) {
  const std::vector<int64_t> layers = source.LayerBytes();
  return std::max(*std::max_element(layers.begin(), layers.end() - 1),
                  StoredBytes(source, ModuleKey::Global(Module::kHead)));
}

// Of the largest row.
Result<int64_t> CacheBytes(const ModelBenchOptions& options) {
  HB_ASSIGN_OR_RETURN(const KvLayout units, KvLayout::Create(options.config, MathMode::kDefault));
  int64_t most = 0;
  const auto add = [&](KvCacheLimits limits) {
    limits.batch_tokens = ModelBenchTransformer(options).batch_tokens;
    most = std::max(most, units.BytesOf(limits.Pools(options.config.sliding_window)));
  };
  for (const int64_t sequences : options.batches) {
    for (const int64_t context : options.contexts) add(GenerationCache(sequences, context));
  }
  for (const int64_t tokens : options.prompts) add(PromptCache(tokens));
  return most;
}

Status CheckLengths(const ModelBenchOptions& options) {
  const int64_t most = options.config.max_position_embeddings;
  for (const int64_t context : options.contexts) {
    if (context + kMaxModelBenchSteps > most) {
      return MakeError(
          "--context {}, and the {} steps that are measured, are more than the model's "
          "context of {}",
          context, kMaxModelBenchSteps, most);
    }
  }
  for (const int64_t tokens : options.prompts) {
    if (tokens > most) {
      return MakeError("--prefill {} is more than the model's context of {}", tokens, most);
    }
  }
  return {};
}

}  // namespace

TransformerOptions ModelBenchTransformer(const ModelBenchOptions& options) {
  const int64_t sequences = options.batches.empty() ? 1 : std::ranges::max(options.batches);
  return {.arithmetic = options.arithmetic,
          .batch_tokens = std::max(options.chunk, sequences),
          .logit_rows = sequences};
}

KvCacheLimits GenerationCache(int64_t sequences, int64_t context) {
  return {
      .sequences = sequences,
      .context_tokens = sequences * RoundUp(context + kMaxModelBenchSteps, kContextBlockTokens)};
}

KvCacheLimits PromptCache(int64_t tokens) { return {.context_tokens = tokens}; }

int64_t ReadPassBytes(int64_t weight_bytes) {
  return std::clamp(weight_bytes, int64_t{1} << 20, int64_t{1} << 30);
}

std::array<ModuleKey, 3> GemmWeights(const ModelConfig& config) {
  const auto compresses = [](const LayerConfig& layer) { return layer.compress_rate > 0; };
  const auto layer = std::find_if(config.layers.begin(), config.layers.end(), compresses);
  const ModuleKey bf16 =
      layer == config.layers.end()
          ? ModuleKey::Layer(0, Module::kRouter)
          : ModuleKey::Layer(layer - config.layers.begin(), Module::kCompressorKv);
  return {ModuleKey::Layer(0, Module::kExpertGate, 0), ModuleKey::Layer(0, Module::kSharedGate),
          bf16};
}

Result<MemoryPlan> PlanModelBench(const ModelBenchOptions& options, ThreadPool& pool) {
  HB_ASSIGN_OR_RETURN(const auto source, SyntheticWeights::Create(options.config, pool));
  HB_ASSIGN_OR_RETURN(MemoryPlan plan,
                      PlanModel(*source, ModelBenchTransformer(options), pool.threads()));
  plan.Add("embedding and hyper-connections", InPlaceBytes(*source));
  plan.Add("making a layer", MakingBytes(*source));
  HB_ASSIGN_OR_RETURN(const int64_t cache, CacheBytes(options));
  plan.Add("KV cache", cache);
  const std::vector<int64_t> layers = source->LayerBytes();
  int64_t limits = ReadPassBytes(std::reduce(layers.begin(), layers.end()));
  for (const ModuleKey& key : GemmWeights(options.config)) {
    HB_ASSIGN_OR_RETURN(const StoredWeight weight, source->Unread(key));
    limits += PackedGemm::Bytes(weight.matrix, options.chunk);
  }
  plan.Add("measuring limits", limits);
  return plan;
}

Result<MemoryPlan> CheckModelBench(const ModelBenchOptions& options, ThreadPool& pool,
                                   const AvailableMemory& available) {
  HB_RETURN_IF_ERROR(CheckLengths(options));
  if (options.arithmetic == Arithmetic::kRef) {
    return MakeError(
        "ref computes from stored weights, which this bench does not keep: choose "
        "--arithmetic w4a16, w4a4 or w4a8");
  }
  HB_ASSIGN_OR_RETURN(MemoryPlan plan, PlanModelBench(options, pool));
  HB_RETURN_IF_ERROR(plan.Check(available, "the bench",
                                "give fewer --layers or --experts, or a smaller --context"));
  return plan;
}

}  // namespace halfbyte
