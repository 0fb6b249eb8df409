// What a model takes of its device's memory, without a look at its weights: asked for before
// anything is loaded.
#pragma once

#include <cstdint>

#include "base/available_memory.h"
#include "base/memory_plan.h"
#include "base/result.h"
#include "model/transformer_options.h"
#include "model/weight_source.h"

namespace halfbyte {

// Weights in the form that is computed with, and the workspace of steps of options.batch_tokens
// tokens by so many threads, of which options.logit_rows get logits. Not below what loading and
// running take, and hardly above; of the source nothing but what it gives meanwhile. Errors: those
// of WeightSource::Unread; of a GPU, those of cuda/load_cuda_model.h.
Result<MemoryPlan> PlanModel(const WeightSource& source, const TransformerOptions& options,
                             int threads);

// What there is of that memory. Error: no such GPU.
Result<AvailableMemory> AvailableTo(const TransformerOptions& options);

}  // namespace halfbyte
