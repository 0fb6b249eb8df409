#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace halfbyte::internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "%s:%d: broken invariant (%s): %s\n", file, line, condition, values.c_str());
  std::abort();
}

}  // namespace halfbyte::internal
