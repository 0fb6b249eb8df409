// A KV cache without a prompt, for benches: valid rows for the tokens that a sequence is said to
// have.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "checkpoint/model_config.h"
#include "model/cpu/cpu_kv_memory.h"
#include "paging/kv_pages.h"

namespace halfbyte {

// Random rows near 1 wherever a step after pages.position tokens looks: window rows, compressed
// entries, index keys, rings. They depend on the seed, layer and position.
void FillCache(ThreadPool& pool, const ModelConfig& config, const SequencePages& pages,
               uint64_t seed, CpuKvMemory& memory);

}  // namespace halfbyte
