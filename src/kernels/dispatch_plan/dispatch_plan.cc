#include "kernels/dispatch_plan/dispatch_plan.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/scale_layout.h"

namespace halfbyte {

ExpertOffsets::ExpertOffsets(std::span<const int64_t> counts, int64_t alignment) {
  Assign(counts, alignment);
}

void ExpertOffsets::Assign(std::span<const int64_t> counts, int64_t alignment) {
  counts_.assign(counts.begin(), counts.end());
  begins_.assign(1, 0);
  for (const int64_t count : counts) begins_.push_back(begins_.back() + RoundUp(count, alignment));
}

Result<ExpertOffsets> ExpertOffsets::FromEnds(std::span<const int64_t> ends, int64_t experts) {
  if (static_cast<int64_t>(ends.size()) != experts) {
    return MakeError(
        "expert offsets: {} end offsets for {} experts; exactly one per expert is "
        "needed, without a leading zero",
        ends.size(), experts);
  }
  std::vector<int64_t> counts;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    if (end < begin) return MakeError("expert offsets: end {} follows {}", end, begin);
    counts.push_back(end - begin);
    begin = end;
  }
  return ExpertOffsets(counts, 1);
}

int64_t ExpertOffsets::rows() const {
  int64_t sum = 0;
  for (const int64_t count : counts_) sum += count;
  return sum;
}

LocalExpert ExpertOffsets::ExpertOf(int64_t padded_row) const {
  HB_CHECK(padded_row >= 0 && padded_row < padded_rows(), "row {} of {}", padded_row,
           padded_rows());
  const auto next = std::upper_bound(begins_.begin(), begins_.end(), padded_row);
  return LocalExpert{static_cast<int32_t>(next - begins_.begin()) - 1};
}

std::vector<int64_t> ExpertOffsets::ends() const {
  std::vector<int64_t> result;
  int64_t sum = 0;
  for (const int64_t count : counts_) result.push_back(sum += count);
  return result;
}

DispatchPlan::DispatchPlan(int64_t slots, int64_t experts, int64_t alignment)
    : alignment_(alignment), experts_(experts) {
  HB_CHECK(slots >= 0 && experts >= 0 && alignment >= 1, "{} slots, {} experts, alignment {}",
           slots, experts, alignment);
  counts_.reserve(static_cast<size_t>(experts));
  next_row_.reserve(static_cast<size_t>(experts));
  offsets_.Reserve(experts);
  row_of_slot_.assign(static_cast<size_t>(slots), kNone);
  slot_of_row_.assign(static_cast<size_t>(PaddedRowsBound(slots, experts, alignment)), kNone);
}

Status DispatchPlan::Build(const ExpertPlacement& placement, MatrixView<const int32_t> topk_ids) {
  const int64_t slots = topk_ids.rows * topk_ids.columns;
  if (slots > slot_capacity()) {
    return MakeError(
        "dispatch plan: {} tokens with {} choices each exceed the capacity of {} "
        "slots; pass fewer tokens at once or plan for more",
        topk_ids.rows, topk_ids.columns, slot_capacity());
  }
  const int64_t experts = placement.local_experts();
  HB_CHECK(experts <= experts_, "{} experts, capacity {}", experts, experts_);
  slots_ = slots;
  counts_.assign(static_cast<size_t>(experts), 0);
  for (int64_t s = 0; s < slots; ++s) {
    const std::optional<LocalExpert> e = placement.ToLocal(topk_ids.data[s]);
    if (e) ++counts_[static_cast<size_t>(Index(*e))];
  }
  offsets_.Assign(counts_, alignment_);
  next_row_.clear();
  for (int32_t e = 0; e < experts; ++e) next_row_.push_back(offsets_.begin(LocalExpert{e}));
  std::fill_n(slot_of_row_.begin(), offsets_.padded_rows(), kNone);
  for (int64_t s = 0; s < slots; ++s) {
    const std::optional<LocalExpert> e = placement.ToLocal(topk_ids.data[s]);
    const int64_t row = e ? next_row_[static_cast<size_t>(Index(*e))]++ : kNone;
    row_of_slot_[static_cast<size_t>(s)] = row;
    if (e) slot_of_row_[static_cast<size_t>(row)] = s;
  }
  return {};
}

}  // namespace halfbyte
