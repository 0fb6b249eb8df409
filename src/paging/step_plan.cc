#include "paging/step_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace halfbyte {

int64_t LogitsRows(LogitsWanted wanted, int64_t tokens) {
  switch (wanted) {
    case LogitsWanted::kNone:
      return 0;
    case LogitsWanted::kLast:
      return 1;
    case LogitsWanted::kAll:
      return tokens;
  }
  return 0;
}

int64_t StepPlan::tokens() const {
  int64_t total = 0;
  for (const PlanItem& item : items) total += std::ssize(item.tokens);
  return total;
}

int64_t StepPlan::logits_rows() const {
  int64_t total = 0;
  for (const PlanItem& item : items) total += item.logits_rows();
  return total;
}

std::string ToString(const StepPlan& plan) {
  constexpr const char* kPools[] = {"context block", "window page", "state slot"};
  constexpr const char* kLogits[] = {"no", "last", "all"};
  std::string text = fmt::format("step {}: {} tokens\n", plan.number, plan.tokens());
  for (const TailMove& move : plan.saves) {
    text += fmt::format("  save slot {} at {} to tail {}\n", move.slot, move.position, move.tail);
  }
  for (const PageCopy& copy : plan.copies) {
    text += fmt::format("  copy {} {} to {}\n", kPools[static_cast<size_t>(copy.pool)], copy.from,
                        copy.to);
  }
  for (const TailMove& move : plan.restores) {
    text +=
        fmt::format("  restore slot {} at {} from tail {}\n", move.slot, move.position, move.tail);
  }
  for (const PlanItem& item : plan.items) {
    text += fmt::format(
        "  {}.{} at {}: tokens [{}], {} logits, draws [{}], slot {}, blocks [{}], "
        "window [{}]\n",
        item.sequence.request, item.sequence.choice, item.pages->position,
        fmt::join(item.tokens, " "), kLogits[static_cast<size_t>(item.logits)],
        fmt::join(item.drawing_choices, " "), item.pages->slot,
        fmt::join(item.pages->context_blocks, " "), fmt::join(item.pages->window_pages, " "));
  }
  return text;
}

}  // namespace halfbyte
