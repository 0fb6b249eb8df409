#include "base/memory_usage.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/cgroup.h"

namespace halfbyte {

int64_t PeakResidentBytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::optional<int64_t> AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string field;
  for (int64_t kibibytes = 0; file >> field >> kibibytes;) {
    if (field == "MemAvailable:") {
      const int64_t limit =
          ReadCgroupLimits().memory_bytes.value_or(std::numeric_limits<int64_t>::max());
      return std::min(kibibytes * 1024, limit);
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

}  // namespace halfbyte
