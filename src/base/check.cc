#include "base/check.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace halfbyte::internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& values) {
  // Whoever should read the message must not keep the program from ending.
  std::signal(SIGALRM, [](int) { std::abort(); });
  ::alarm(1);
  std::fprintf(stderr, "%s:%d: broken invariant (%s): %s\n", file, line, condition, values.c_str());
  std::abort();
}

}  // namespace halfbyte::internal
