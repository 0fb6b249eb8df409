// A model on one device: its weights in the device's own form, and what carries out its steps.
// What model/transformer.h needs of a device; cpu/cpu_model.h and cuda/cuda_model.h are the two.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "model/batch_item.h"
#include "model/kv_memory.h"
#include "model/metered_ops.h"
#include "model/program/deepseek_v4.h"
#include "moe/moe_layer.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// Told when a layer has been loaded, and, with -1, when what belongs to none has.
using LoadListener = std::function<void(int64_t layer)>;

class DeviceModel {
 public:
  virtual ~DeviceModel() = default;

  // Rows of the KV cache. Errors: sizes that do not fit in memory.
  virtual Result<std::unique_ptr<KvMemory>> NewMemory(const KvPoolSizes& sizes) const = 0;

  // One step: at most TransformerOptions::batch_tokens tokens, which are in the vocabulary and have
  // room in their pages. `memory` is one that this model has made. Returns logits [rows, vocab] in
  // memory of the host, valid until the next call: a row for each token that wants one. Error: the
  // device failed, or another rank; the model is of no use then.
  struct Watchers {
    LayerObserver* observer = nullptr;  // or null
    OperationMeter* meter = nullptr;    // or null
  };
  virtual Result<MatrixView<const float>> Run(KvMemory& memory, std::span<const PlacedItem> batch,
                                              const Watchers& watchers) = 0;

  // What the activation quantizers of one layer saw since loading; all zero unless w4a4.
  virtual MoeCounters moe_counters(int64_t layer) const = 0;
  // Memory between the operations of a step; steps do not change it.
  virtual int64_t workspace_bytes() const = 0;
};

}  // namespace halfbyte
