#include "base/memory_plan.h"

#include <algorithm>
#include <limits>

#include "base/progress.h"

namespace halfbyte {
namespace {

// Absurd sizes stay absurd, but no sum wraps.
int64_t AddSaturating(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace

void MemoryPlan::Add(std::string_view what, int64_t bytes, bool mapped) {
  if (bytes <= 0) return;
  const auto same = std::ranges::find_if(
      items_, [&](const Item& item) { return item.what == what && item.mapped == mapped; });
  if (same == items_.end()) {
    items_.push_back({std::string(what), bytes, mapped});
  } else {
    same->bytes = AddSaturating(same->bytes, bytes);
  }
}

int64_t MemoryPlan::Sum(bool mapped) const {
  int64_t sum = 0;
  for (const Item& item : items_) {
    if (item.mapped == mapped) sum = AddSaturating(sum, item.bytes);
  }
  return sum;
}

std::string MemoryPlan::Describe() const {
  std::string parts;
  for (const Item& item : items_) {
    if (item.mapped) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", item.what, HumanBytes(item.bytes));
  }
  std::string text = HumanBytes(resident_bytes());
  if (!parts.empty()) text += fmt::format(" ({})", parts);
  if (mapped_bytes() > 0)
    text += fmt::format(" and {} of mapped files", HumanBytes(mapped_bytes()));
  return text;
}

Status MemoryPlan::Check(const AvailableMemory& available, std::string_view subject,
                         std::string_view remedy) const {
  const auto refuse = [&](const MemoryBound& bound) {
    return MakeError(ErrorKind::kMemory, "{} needs memory of {}, but {} are free {}; {}", subject,
                     Describe(), HumanBytes(bound.bytes), bound.where, remedy);
  };
  const int64_t resident = resident_bytes();
  if (available.resident && resident > available.resident->bytes) {
    return refuse(*available.resident);
  }
  const int64_t addresses = AddSaturating(resident, mapped_bytes());
  if (available.addresses && addresses > available.addresses->bytes) {
    return refuse(*available.addresses);
  }
  return {};
}

}  // namespace halfbyte
