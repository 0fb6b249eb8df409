// What all layers of one forward call share: which tokens, at which positions, of which sequences.
#pragma once

#include <algorithm>
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
#include "paging/step_plan.h"

namespace halfbyte {

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
  int64_t offset = 0;  // the first token's position beyond pages->position

  int64_t position() const { return pages->position + offset; }
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
  std::vector<int64_t> rows;       // [tokens], ascending: where they stand in a larger step, if any
  std::vector<int32_t> token_ids;  // [tokens]
  std::vector<const SequencePages*> sequences;
  std::vector<TokenSpan> spans;  // of sequences
  RopeAngles window_angles;      // [tokens], by kind of layer
  RopeAngles compressed_angles;

  const RopeAngles& angles(AttentionKind kind) const {
    return kind == AttentionKind::kWindow ? window_angles : compressed_angles;
  }

  // Moves the rows of these tokens to the front of `all`, which has a row for each token of the
  // larger step, and returns them.
  template <class T>
  MatrixView<T> Keep(MatrixView<T> all) const {
    if (all.rows == tokens) return all;
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(all.row(rows[static_cast<size_t>(t)]), all.columns, all.row(t));
    }
    return all.Rows(0, tokens);
  }

  // Runs body(first, count) on ranges of at most kMostTokens, side by side: a thread takes its
  // tokens through several kernels while their rows are in its cache, and from one such loop to the
  // next mostly the same tokens. (The kernels' own loops then run in their caller. With fewer
  // tokens than threads there is one range, and they share out what they can.)
  template <class Body>
  void ForTokens(const Body& body) const {
    constexpr int64_t kMostTokens = 8;
    const int64_t threads = context->pool().threads();
    const int64_t each = std::min((tokens + threads - 1) / threads, kMostTokens);
    context->pool().ParallelFor(tokens, tokens < threads ? tokens : each,
                                [&](int64_t begin, int64_t end) {
                                  for (; begin < end; begin += kMostTokens) {
                                    body(begin, std::min(kMostTokens, end - begin));
                                  }
                                });
  }
};

}  // namespace halfbyte
