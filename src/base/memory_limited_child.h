// For tests only: runs code in a process of its own that may allocate so much memory and no more,
// and says what it had resident at most. Two measures, because neither suffices alone: the kernel
// keeps the limit of private memory (heap, anonymous mappings, stacks) exactly, and the peak of
// resident memory also has the pages of mapped files, of which the kernel maps some on its own.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/memory_usage.h"

// Sanitizers have memory of their own, far beyond any limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HALFBYTE_CAN_LIMIT_MEMORY 1

namespace halfbyte::test {

struct MemoryLimits {
  int64_t private_bytes = 0;   // that the body may add at any time; stacks of its threads excepted
  int64_t resident_bytes = 0;  // likewise, mapped files included
  int threads = 0;             // that the body starts
};

inline int64_t ThreadStackBytes() {
  pthread_attr_t defaults;
  size_t bytes = 0;
  EXPECT_EQ(pthread_getattr_default_np(&defaults), 0);
  pthread_attr_getstacksize(&defaults, &bytes);
  pthread_attr_destroy(&defaults);
  return static_cast<int64_t>(bytes) + (int64_t{1} << 20);  // the thread's heap and guard pages
}

// body() returns an empty string, or what went wrong.
template <class Body>
void ExpectWithin(const MemoryLimits& limits, const Body& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto fail = [](const std::string& why) {
      std::fprintf(stderr, "in the child: %s\n", why.c_str());
      std::_Exit(1);
    };
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts here
    const int64_t before = PeakResidentBytes();
    const auto limit = static_cast<rlim_t>(PrivateBytes() + limits.private_bytes +
                                           limits.threads * ThreadStackBytes());
    const rlimit data{limit, limit};
    if (setrlimit(RLIMIT_DATA, &data) != 0) fail("no limit can be set");
    const std::string error = body();
    if (!error.empty()) fail(error);
    const int64_t peak = PeakResidentBytes() - before;
    std::printf("resident at most %.1f MiB more than before, allowed are %.1f\n",
                static_cast<double>(peak) / 0x1p20,
                static_cast<double>(limits.resident_bytes) / 0x1p20);
    std::fflush(stdout);
    if (peak > limits.resident_bytes) fail("too much resident memory");
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

}  // namespace halfbyte::test
#endif
