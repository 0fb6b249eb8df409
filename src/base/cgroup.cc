#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

template <class T>
void Tighten(std::optional<T>& limit, T other) {
  limit = std::min(limit.value_or(other), other);
}

// The numbers of a file; none where it says "max" or is not there.
std::optional<double> ReadNumber(const fs::path& path, double* second = nullptr) {
  std::ifstream file(path);
  double first = 0;
  if (!(file >> first)) return std::nullopt;
  if (second != nullptr && !(file >> *second)) return std::nullopt;
  return first;
}

void ReadVersion2(const fs::path& group, CgroupLimits& limits) {
  double period = 0;
  const std::optional<double> quota = ReadNumber(group / "cpu.max", &period);
  if (quota && *quota > 0 && period > 0) Tighten(limits.processors, *quota / period);
  if (const auto memory = ReadNumber(group / "memory.max")) {
    Tighten(limits.memory_bytes, static_cast<int64_t>(*memory));
  }
}

void ReadVersion1Cpu(const fs::path& group, CgroupLimits& limits) {
  const std::optional<double> quota = ReadNumber(group / "cpu.cfs_quota_us");  // -1: no limit
  const std::optional<double> period = ReadNumber(group / "cpu.cfs_period_us");
  if (quota && period && *quota > 0 && *period > 0) Tighten(limits.processors, *quota / *period);
}

void ReadVersion1Memory(const fs::path& group, CgroupLimits& limits) {
  constexpr double kNoLimit = 0x1p62;
  const std::optional<double> bytes = ReadNumber(group / "memory.limit_in_bytes");
  if (bytes && *bytes < kNoLimit) Tighten(limits.memory_bytes, static_cast<int64_t>(*bytes));
}

// Calls read(folder) for the group and those around it. Inside a container the group's path may be
// the host's and lead nowhere; the container's own group is then mounted at the root.
template <class Read>
void ForEachGroup(const fs::path& root, const std::string& group, const Read& read) {
  for (fs::path path = fs::path(group).relative_path(); !path.empty(); path = path.parent_path()) {
    read(root / path);
  }
  read(root);
}

}  // namespace

CgroupLimits ReadCgroupLimits(const fs::path& mount, const fs::path& membership) {
  CgroupLimits limits;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/group", version 2: "0::/"
    std::istringstream fields(line);
    std::string number, controllers, group;
    if (!std::getline(fields, number, ':') || !std::getline(fields, controllers, ':') ||
        !std::getline(fields, group)) {
      continue;
    }
    const auto controls = [&](const std::string& name) {
      return ("," + controllers + ",").find("," + name + ",") != std::string::npos;
    };
    if (controllers.empty()) {
      ForEachGroup(mount, group, [&](const fs::path& path) { ReadVersion2(path, limits); });
    }
    if (controls("cpu")) {
      ForEachGroup(mount / "cpu", group,
                   [&](const fs::path& path) { ReadVersion1Cpu(path, limits); });
    }
    if (controls("memory")) {
      ForEachGroup(mount / "memory", group,
                   [&](const fs::path& path) { ReadVersion1Memory(path, limits); });
    }
  }
  return limits;
}

}  // namespace halfbyte
