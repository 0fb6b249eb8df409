// Page ids with reference counts: which pages of a pool are in use. The lowest free id comes first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace halfbyte {

class PagePool {
 public:
  explicit PagePool(int64_t pages = 0);

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }

  std::optional<int32_t> Take();  // with one reference; nothing if all are in use
  void Retain(int32_t page);      // one more reference
  void Release(int32_t page);     // one less; free at zero

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // a min-heap
};

}  // namespace halfbyte
