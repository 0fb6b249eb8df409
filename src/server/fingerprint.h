// What a client compares to know whether results may have changed (server.md §1.7).
#pragma once

#include <string>

#include "base/result.h"

namespace halfbyte {

struct ServedModelOptions;

// "hb-" and 12 hex digits over all that may change a result: this program's version and commit, the
// model's files (small ones whole, of the others the size), its arithmetic. Not: threads, batches,
// cache, which change none.
Result<std::string> SystemFingerprint(const ServedModelOptions& options);

}  // namespace halfbyte
