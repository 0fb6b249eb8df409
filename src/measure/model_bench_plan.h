// What model_bench.cc and its plan agree on.
#pragma once

#include <array>
#include <cstdint>

#include "measure/model_bench.h"
#include "model/kv_cache.h"
#include "model/transformer.h"

namespace halfbyte {

// Steps of a row that generates, at most.
inline constexpr int64_t kMaxModelBenchSteps = 64;

TransformerOptions ModelBenchTransformer(const ModelBenchOptions& options);
KvCacheLimits GenerationCache(int64_t sequences, int64_t context);
KvCacheLimits PromptCache(int64_t tokens);
// Bytes that a read pass goes through.
int64_t ReadPassBytes(int64_t weight_bytes);
// One weight of each kind that the model multiplies with.
std::array<ModuleKey, 3> GemmWeights(const ModelConfig& config);

}  // namespace halfbyte
