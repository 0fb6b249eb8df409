// The rows of the KV cache on some device: pools of pages that cover every layer (kv_layout.h).
// Who owns which page is the business of paging/kv_pages.h.
#pragma once

#include <utility>

#include "base/result.h"
#include "model/kv_layout.h"
#include "paging/kv_pages.h"

namespace halfbyte {

class KvMemory {
 public:
  virtual ~KvMemory() = default;
  KvMemory(const KvMemory&) = delete;
  KvMemory& operator=(const KvMemory&) = delete;

  const KvLayout& layout() const { return layout_; }

  // Work that goes with bookkeeping, in the order of the calls; steps that are run later see it.
  // Error: the device failed.
  virtual Status Copy(const PageCopy& copy) = 0;
  virtual Status SaveTail(const TailMove& move) = 0;
  virtual Status RestoreTail(const TailMove& move) = 0;

 protected:
  explicit KvMemory(KvLayout layout) : layout_(std::move(layout)) {}

 private:
  const KvLayout layout_;
};

}  // namespace halfbyte
