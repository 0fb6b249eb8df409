// A model on a GPU; in builds without CUDA, what says that there is none.
#pragma once

#include <memory>

#include "base/available_memory.h"
#include "base/memory_plan.h"
#include "base/result.h"
#include "device/context.h"
#include "model/device_model.h"
#include "model/transformer_options.h"
#include "model/weight_source.h"

namespace halfbyte {

// What the model takes of the memory of GPU *options.gpu, without a look at its weights (but not
// its KV cache); and what this process may take there: what is free, but no more than `part` of
// everything (0..1). Errors: no such GPU, or no CUDA; those of WeightSource::Unread, and what
// LoadCudaModel says of options, shapes and formats.
Result<MemoryPlan> PlanCudaModel(const WeightSource& source, const TransformerOptions& options);
Result<AvailableMemory> AvailableGpuMemory(int gpu, double part);

// On GPU *options.gpu. The source, the context's pool and the communicator must outlive it. Errors:
// what this device does not compute (another math than the default, several ranks, shapes that its
// kernels are not made for), each named; no such GPU, or in programs built without CUDA, that they
// are; GPU memory, with the numbers.
Result<std::unique_ptr<DeviceModel>> LoadCudaModel(const WeightSource& source,
                                                   const TransformerOptions& options,
                                                   const Context& context,
                                                   const LoadListener& on_part);

}  // namespace halfbyte
