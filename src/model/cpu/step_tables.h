// What all operations of a step look up: which tokens, at which positions, of which sequences. Made
// once a step.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "kernels/rope/rope.h"
#include "kernels/token_span.h"
#include "model/batch_item.h"
#include "model/program/model_ops.h"
#include "model/rope_tables.h"

namespace halfbyte {

// Of all tokens, or of the wanted ones.
struct TokenTables {
  std::vector<int64_t> rows;       // [tokens], ascending: where they stand among all
  std::vector<int32_t> token_ids;  // [tokens]
  std::vector<const SequencePages*> sequences;
  std::vector<TokenSpan> spans;  // of sequences
  RopeAngles window_angles;      // [tokens], by kind of layer
  RopeAngles compressed_angles;

  int64_t tokens() const { return std::ssize(token_ids); }
  const RopeAngles& angles(AttentionKind kind) const {
    return kind == AttentionKind::kWindow ? window_angles : compressed_angles;
  }
};

class StepTables {
 public:
  // Of the batch, which must outlive its use.
  StepTables(std::span<const PlacedItem> batch, const RopeTables& rope);

  const TokenTables& of(TokenSet tokens) const {
    return tokens == TokenSet::kAll || all_wanted_ ? all_ : wanted_;
  }
  StepShape shape() const;

 private:
  TokenTables all_;
  TokenTables wanted_;  // empty if they are all
  bool all_wanted_ = false;
};

}  // namespace halfbyte
