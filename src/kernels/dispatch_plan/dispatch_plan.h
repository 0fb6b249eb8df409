// Which rows each expert computes (moe-layer.md §5). A slot is one token's one choice,
// slot = token * top_k + j. Each slot with a local expert gets one padded_row; a slot without one
// (another rank's expert, or a marker such as -1) gets none. The rows of an expert are in slot
// order and begin at a multiple of `alignment`. token_plan.h makes the same plan on a GPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/dispatch_plan/padded_rows.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// Elements before row `slots` of a [rows, width] buffer: always 64 bits (RTE-03).
constexpr int64_t RowElementOffset(int64_t tokens, int64_t top_k, int64_t width) {
  return tokens * top_k * width;
}

// Row ranges of the experts of a rank. Padded begins and real ends; never a raw array, because
// two dialects of it exist (begins with a leading zero, ends without).
class ExpertOffsets {
 public:
  ExpertOffsets() = default;
  // counts[e] rows for local expert e.
  ExpertOffsets(std::span<const int64_t> counts, int64_t alignment);
  void Assign(std::span<const int64_t> counts, int64_t alignment);
  void Reserve(int64_t experts) {
    counts_.reserve(static_cast<size_t>(experts));
    begins_.reserve(static_cast<size_t>(experts) + 1);
  }
  // From a foreign grouped GEMM: cumulative unpadded ends, one per expert. Errors: not exactly
  // `experts` entries (a leading zero makes one too many), or falling ones.
  static Result<ExpertOffsets> FromEnds(std::span<const int64_t> ends, int64_t experts);

  int64_t experts() const { return static_cast<int64_t>(counts_.size()); }
  int64_t count(LocalExpert e) const { return counts_[static_cast<size_t>(Index(e))]; }
  int64_t begin(LocalExpert e) const { return begins_[static_cast<size_t>(Index(e))]; }
  int64_t end(LocalExpert e) const { return begin(e) + count(e); }  // of the real rows
  int64_t padded_end(LocalExpert e) const { return begins_[static_cast<size_t>(Index(e)) + 1]; }
  int64_t padded_rows() const { return begins_.back(); }
  int64_t rows() const;  // real ones

  // The expert in whose padded range the row lies: the last one that begins at or before it.
  LocalExpert ExpertOf(int64_t padded_row) const;
  // Cumulative unpadded ends without a leading zero, as foreign grouped GEMMs take them.
  std::vector<int64_t> ends() const;

 private:
  std::vector<int64_t> counts_;
  std::vector<int64_t> begins_ = {0};  // experts + 1
};

class DispatchPlan {
 public:
  // Memory for at most `slots` slots and `experts` local experts; Build allocates nothing.
  DispatchPlan(int64_t slots, int64_t experts, int64_t alignment);

  // topk_ids [tokens, top_k]. Error: more slots than the capacity. Aborts if the placement has
  // more local experts than the capacity.
  Status Build(const ExpertPlacement& placement, MatrixView<const int32_t> topk_ids);

  int64_t slots() const { return slots_; }
  int64_t slot_capacity() const { return static_cast<int64_t>(row_of_slot_.size()); }
  int64_t row_capacity() const { return static_cast<int64_t>(slot_of_row_.size()); }
  int64_t alignment() const { return alignment_; }
  const ExpertOffsets& offsets() const { return offsets_; }

  static constexpr int64_t kNone = -1;
  int64_t padded_row_of_slot(int64_t slot) const { return row_of_slot_[static_cast<size_t>(slot)]; }
  int64_t slot_of_padded_row(int64_t row) const { return slot_of_row_[static_cast<size_t>(row)]; }

 private:
  int64_t alignment_;
  int64_t experts_;  // capacity
  int64_t slots_ = 0;
  ExpertOffsets offsets_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> next_row_;
  std::vector<int64_t> row_of_slot_;  // kNone: no local expert
  std::vector<int64_t> slot_of_row_;  // kNone: padding
};

}  // namespace halfbyte
