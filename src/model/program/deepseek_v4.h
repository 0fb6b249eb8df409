// DeepSeek-V4 as a program: the order of a step's operations, and every decision about them
// (deepseek-v4.md §2). Nothing here knows a device.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "model/program/model_ops.h"
#include "numerics/rounding.h"

namespace halfbyte {

// Sees what the operations of a layer made, before it is gone.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // attention, moe: the blocks' outputs; streams: after the layer. Rows of all tokens, to be read
  // now.
  virtual void OnLayer(const ModelOps& ops, int64_t layer, Rows attention, Rows moe,
                       const ModelOps::Choice& choice, Rows streams) = 0;
};

struct ProgramOptions {
  Rounding rounding = Rounding::kBf16;  // at the model's rounding points; kNone: fp32 everywhere
  // In the last layer a token whose logits nobody wants goes no further than the cache, unless
  // somebody looks at what layers compute: an observer, or whoever else asks for all of them.
  bool whole_last_layer = false;
  LayerObserver* observer = nullptr;
};

// Error: that of ModelOps::RunExperts; what the step has stored is of no use then.
Status RunDeepseekV4(const ModelConfig& config, const ProgramOptions& options,
                     const StepShape& step, ModelOps& ops);

}  // namespace halfbyte
