#include "kernels/dispatch_plan/expert_placement.h"

#include <utility>

#include "base/check.h"

namespace halfbyte {

ExpertPlacement ExpertPlacement::Single(int32_t experts) {
  HB_CHECK(experts >= 1, "experts {}", experts);
  return *Balanced(experts, 1, 0);
}

Result<ExpertPlacement> ExpertPlacement::Balanced(int32_t experts, int32_t ranks, int32_t rank) {
  if (experts < 1) return MakeError("expert placement: {} experts; at least 1 is needed", experts);
  if (ranks < 1) return MakeError("expert placement: {} ranks; at least 1 is needed", ranks);
  std::vector<int32_t> owners;
  for (int32_t r = 0; r < ranks; ++r) {
    owners.insert(owners.end(), static_cast<size_t>(experts / ranks + (r < experts % ranks)), r);
  }
  return Table(std::move(owners), ranks, rank);
}

Result<ExpertPlacement> ExpertPlacement::Table(std::vector<int32_t> owners, int32_t ranks,
                                               int32_t rank) {
  if (owners.empty()) return MakeError("expert placement: the table of owners is empty");
  if (rank < 0 || rank >= ranks) {
    return MakeError("expert placement: rank {} is outside 0..{}", rank, ranks - 1);
  }
  ExpertPlacement placement;
  placement.ranks_ = ranks;
  placement.rank_ = rank;
  for (size_t e = 0; e < owners.size(); ++e) {
    if (owners[e] < 0 || owners[e] >= ranks) {
      return MakeError("expert placement: expert {} has owner {}, outside 0..{}", e, owners[e],
                       ranks - 1);
    }
    const bool local = owners[e] == rank;
    placement.locals_.push_back(local ? placement.local_experts() : -1);
    if (local) placement.globals_.push_back(GlobalExpert{static_cast<int32_t>(e)});
  }
  placement.owners_ = std::move(owners);
  return placement;
}

Result<std::vector<float>> ExpertPlacement::LocalPart(std::span<const float> of_all_experts) const {
  if (of_all_experts.size() != owners_.size()) {
    return MakeError("expert placement: a list of {} values for {} experts", of_all_experts.size(),
                     owners_.size());
  }
  std::vector<float> local;
  for (const GlobalExpert e : globals_) {
    local.push_back(of_all_experts[static_cast<size_t>(Index(e))]);
  }
  return local;
}

}  // namespace halfbyte
