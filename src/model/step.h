// What all layers of one forward call share: which tokens, at which positions, of which sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "device/arena.h"
#include "device/context.h"
#include "kernels/rope/rope.h"
#include "kernels/token_span.h"
#include "model/kv_memory.h"
#include "moe/expert_exchange.h"
#include "moe/moe_workspace.h"
#include "numerics/rounding.h"

namespace halfbyte {

// Which rows of a chunk get logits.
enum class LogitsWanted { kNone, kLast, kAll };

// One sequence's chunk of a ragged batch.
struct BatchItem {
  Sequence* sequence = nullptr;  // not twice in one batch
  std::span<const int32_t> tokens;
  LogitsWanted logits = LogitsWanted::kLast;
};

// The same where somebody else keeps the sequences: there is room for the tokens in its pages.
struct PlacedItem {
  const SequencePages* pages = nullptr;
  std::span<const int32_t> tokens;
  LogitsWanted logits = LogitsWanted::kLast;
};

struct Step {
  const Context* context = nullptr;
  const KvMemory* cache = nullptr;
  Arena* arena = nullptr;
  MoeWorkspace* moe_workspace = nullptr;
  ExpertExchange* expert_exchange = nullptr;  // null: this rank has all experts
  Rounding rounding = Rounding::kNone;
  int64_t reference_tokens = 0;  // TransformerOptions

  int64_t tokens = 0;
  std::vector<int32_t> token_ids;  // [tokens]
  std::vector<const SequencePages*> sequences;
  std::vector<TokenSpan> spans;  // of sequences
  RopeAngles window_angles;      // [tokens], by kind of layer
  RopeAngles compressed_angles;

  const RopeAngles& angles(AttentionKind kind) const {
    return kind == AttentionKind::kWindow ? window_angles : compressed_angles;
  }
};

}  // namespace halfbyte
