#include "base/memory_usage.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "base/cgroup.h"

namespace halfbyte {
namespace {

// The bytes that a line "NAME: NUMBER kB" of a file of the kernel states.
std::optional<int64_t> ReadBytes(const char* path, std::string_view name) {
  std::ifstream file(path);
  std::string field;
  while (file >> field) {
    if (int64_t kibibytes = 0; field == name && file >> kibibytes) return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

}  // namespace

// Not getrusage: its peak is inherited from the program that started this one.
int64_t PeakResidentBytes() { return ReadBytes("/proc/self/status", "VmHWM:").value_or(0); }

int64_t PrivateBytes() { return ReadBytes("/proc/self/status", "VmData:").value_or(0); }

std::optional<int64_t> AvailableMemoryBytes() {
  const std::optional<int64_t> bytes = ReadBytes("/proc/meminfo", "MemAvailable:");
  if (!bytes) return std::nullopt;
  return std::min(*bytes, ReadCgroupLimits().memory_bytes.value_or(*bytes));
}

}  // namespace halfbyte
