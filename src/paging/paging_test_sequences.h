// Sequences of the tests that need pages but no rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "paging/kv_pages.h"

namespace halfbyte {

// Reserves and advances; the rows hold nothing.
inline void Grow(KvPages& pages, Sequence& sequence, int64_t tokens, int64_t chunk = 64) {
  for (; tokens > 0; tokens -= chunk) {
    const int64_t count = std::min(tokens, chunk);
    const Status status = pages.Reserve(sequence, count);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    pages.Advance(sequence, count);
  }
}

}  // namespace halfbyte
