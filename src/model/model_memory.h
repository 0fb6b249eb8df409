// What a model takes, from the headers of its files alone: asked for before anything is loaded.
#pragma once

#include <cstdint>

#include "base/memory_plan.h"
#include "checkpoint/model_checkpoint.h"
#include "model/kv_cache.h"
#include "model/transformer.h"

namespace halfbyte {

// Weights in the form that is computed with, and the workspace of steps of options.batch_tokens
// tokens by so many threads, of which options.logit_rows get logits. Not below what loading and
// running take, and hardly above. Errors: those of FindWeight.
Result<MemoryPlan> PlanModel(const ModelCheckpoint& checkpoint, const TransformerOptions& options,
                             int threads);

}  // namespace halfbyte
