#include "moe/expert_exchange.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/combine/combine_slots.h"
#include "kernels/dispatch_plan/dispatch_plan.h"

namespace halfbyte {

ExpertExchange::ExpertExchange(Communicator& communicator, const MoeLimits& limits)
    : communicator_(communicator),
      limits_(limits),
      counts_(static_cast<size_t>(communicator.size())),
      next_row_(static_cast<size_t>(communicator.size())),
      row_of_slot_(static_cast<size_t>(limits.slots())),
      mine_(std::make_unique_for_overwrite<float[]>(
          static_cast<size_t>(limits.slots() * limits.hidden))),
      all_(std::make_unique_for_overwrite<float[]>(
          static_cast<size_t>(limits.slots() * limits.hidden))) {}

void ExpertExchange::Plan(const ExpertPlacement& placement, MatrixView<const int32_t> topk_ids) {
  const int64_t slots = topk_ids.rows * topk_ids.columns;
  const auto owner = [&](int64_t slot) {
    const int32_t id = topk_ids.data[slot];
    return id < 0 || id >= placement.experts() ? -1 : placement.owner(GlobalExpert{id});
  };
  std::fill(counts_.begin(), counts_.end(), 0);
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (owner(slot) >= 0) ++counts_[static_cast<size_t>(owner(slot))];
  }
  std::exclusive_scan(counts_.begin(), counts_.end(), next_row_.begin(), int64_t{0});
  for (int64_t slot = 0; slot < slots; ++slot) {
    row_of_slot_[static_cast<size_t>(slot)] =
        owner(slot) < 0 ? DispatchPlan::kNone : next_row_[static_cast<size_t>(owner(slot))]++;
  }
}

Status ExpertExchange::Run(const Context& context, const MoeLayer& layer,
                           MatrixView<const float> hidden, const Routing& routing,
                           MatrixView<float> out, MoeWorkspace& workspace, MoeCounters* counters) {
  const ExpertPlacement& placement = layer.placement();
  const int64_t width = layer.params().hidden;
  HB_CHECK(placement.ranks() == communicator_.size() && placement.rank() == communicator_.rank(),
           "a placement for rank {} of {} on rank {} of {}", placement.rank(), placement.ranks(),
           communicator_.rank(), communicator_.size());
  HB_CHECK(routing.top_k() <= limits_.top_k && width <= limits_.hidden,
           "exchange for top_k {}, hidden size {}", limits_.top_k, limits_.hidden);
  const int64_t piece = std::min(limits_.tokens, workspace.limits.tokens);
  HB_CHECK(piece >= 1, "exchange for {} tokens", piece);
  for (int64_t t = 0; t < hidden.rows; t += piece) {
    const int64_t tokens = std::min(piece, hidden.rows - t);
    const Routing choices = routing.Rows(t, tokens);
    Plan(placement, choices.topk_ids);
    const int64_t local = counts_[static_cast<size_t>(communicator_.rank())];
    const int64_t computed = layer.RunSlots(context, hidden.Rows(t, tokens), choices,
                                            {mine_.get(), local, width}, workspace, counters);
    HB_CHECK(computed == local, "{} local slots, {} computed", local, computed);

    std::vector<int64_t>& numbers = next_row_;  // by rank
    std::transform(counts_.begin(), counts_.end(), numbers.begin(),
                   [&](int64_t rows) { return rows * width; });
    const int64_t rows = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
    HB_RETURN_IF_ERROR(communicator_.AllGather({mine_.get(), static_cast<size_t>(local * width)},
                                               numbers,
                                               {all_.get(), static_cast<size_t>(rows * width)}));
    CombineSlots(
        context, choices, CombineRuleOf(layer.params()),
        [&](int64_t slot) -> const float* {
          const int64_t row = row_of_slot_[static_cast<size_t>(slot)];
          return row == DispatchPlan::kNone ? nullptr : all_.get() + row * width;
        },
        out.Rows(t, tokens));
  }
  return {};
}

}  // namespace halfbyte
