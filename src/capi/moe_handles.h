// What the two opaque types of the C interface hold.
#pragma once

#include <halfbyte/moe.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/thread_pool.h"
#include "capi/layer_options.h"
#include "checkpoint/model_checkpoint.h"
#include "device/context.h"
#include "model/routed_layer.h"
#include "moe/moe_workspace.h"

struct halfbyte_moe_layer {
  halfbyte_moe_layer(halfbyte::RoutedLayer layer, int thread_count)
      : routed(std::move(layer)), threads(thread_count) {}

  std::unique_ptr<halfbyte::ModelCheckpoint>
      checkpoint;  // owns the bytes of `routed`, if it is one
  halfbyte::RoutedLayer routed;
  int threads;

  mutable std::mutex counters_mutex;  // taken once per call, after the work
  mutable halfbyte::MoeCounters counters;
  mutable halfbyte::RouterCounters router_counters;
};

struct halfbyte_moe_workspace {
  halfbyte_moe_workspace(const halfbyte::MoeLimits& limits, int threads)
      : pool(threads),
        context(pool),
        memory(limits),
        hidden(std::make_unique_for_overwrite<float[]>(Elements(limits))),
        out(std::make_unique_for_overwrite<float[]>(Elements(limits))) {}

  static size_t Elements(const halfbyte::MoeLimits& limits) {
    return static_cast<size_t>(limits.tokens) * static_cast<size_t>(limits.hidden);
  }

  halfbyte::ThreadPool pool;
  halfbyte::Context context;
  halfbyte::MoeWorkspace memory;
  std::unique_ptr<float[]> hidden;  // [tokens, hidden] of bf16 rows
  std::unique_ptr<float[]> out;     // [tokens, hidden], before they become bf16 rows
  std::atomic<bool> in_use = false;
};

namespace halfbyte {

// The layer's own checks on input (layer_options.h) are done; these build it. See moe.h.
Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromCheckpoint(const char* directory,
                                                                int64_t layer,
                                                                const LayerOptions& options);
Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromTensors(const halfbyte_moe_weights& weights,
                                                             const LayerOptions& options);

// The largest number of experts, and of elements of a row.
inline constexpr int64_t kMaxExperts = 1 << 20;
inline constexpr int64_t kMaxWidth = 1 << 24;

}  // namespace halfbyte
