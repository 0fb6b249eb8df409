#include "base/memory_usage.h"

#include <sys/resource.h>

namespace halfbyte {

int64_t PeakResidentBytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace halfbyte
