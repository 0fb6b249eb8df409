#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

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

// The sum of the fields of a file of lines "NAME NUMBER".
int64_t SumFields(const fs::path& path, std::initializer_list<std::string_view> names) {
  std::ifstream file(path);
  int64_t sum = 0;
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (std::ranges::find(names, name) != names.end()) sum += value;
  }
  return sum;
}

void AddMemory(const fs::path& group, double limit, const fs::path& used, int64_t files,
               CgroupLimits& limits) {
  CgroupMemory memory{.group = group.string(), .limit_bytes = static_cast<int64_t>(limit)};
  const auto needed = static_cast<int64_t>(ReadNumber(used).value_or(0)) - files;
  memory.free_bytes = std::max<int64_t>(0, memory.limit_bytes - std::max<int64_t>(0, needed));
  if (!limits.memory || memory.free_bytes < limits.memory->free_bytes) {
    limits.memory = std::move(memory);
  }
}

void ReadVersion2(const fs::path& group, CgroupLimits& limits) {
  double period = 0;
  const std::optional<double> quota = ReadNumber(group / "cpu.max", &period);
  if (quota && *quota > 0 && period > 0) Tighten(limits.processors, *quota / period);
  // Beyond memory.high a process is not killed, but held up until it hardly moves.
  for (const char* name : {"memory.max", "memory.high"}) {
    const std::optional<double> limit = ReadNumber(group / name);
    if (!limit) continue;
    AddMemory(group, *limit, group / "memory.current",
              SumFields(group / "memory.stat", {"active_file", "inactive_file"}), limits);
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
  if (!bytes || *bytes >= kNoLimit) return;
  AddMemory(group, *bytes, group / "memory.usage_in_bytes",
            SumFields(group / "memory.stat", {"total_active_file", "total_inactive_file"}), limits);
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
