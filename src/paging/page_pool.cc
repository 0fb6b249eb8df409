#include "paging/page_pool.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace halfbyte {

PagePool::PagePool(int64_t pages)
    : references_(static_cast<size_t>(pages), 0), free_(static_cast<size_t>(pages)) {
  std::iota(free_.begin(), free_.end(), 0);  // ascending: a heap already
}

std::optional<int32_t> PagePool::Take() {
  if (free_.empty()) return std::nullopt;
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::Retain(int32_t page) {
  HB_CHECK(references_[static_cast<size_t>(page)] > 0, "page {} is free", page);
  ++references_[static_cast<size_t>(page)];
}

void PagePool::Release(int32_t page) {
  HB_CHECK(references_[static_cast<size_t>(page)] > 0, "page {} is free", page);
  if (--references_[static_cast<size_t>(page)] > 0) return;
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace halfbyte
