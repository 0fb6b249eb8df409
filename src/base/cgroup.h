// Limits that control groups (version 1 or 2) put on this process: the tightest of its group and
// the groups around it. Containers are limited this way, not by the number of processors they see.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace halfbyte {

// What a group may still take. Pages of files are charged to it too, but the kernel drops them when
// it needs their room, so they count as free.
struct CgroupMemory {
  std::string group;
  int64_t limit_bytes = 0;
  int64_t free_bytes = 0;
};

struct CgroupLimits {
  std::optional<double> processors;    // CPU time per wall time
  std::optional<CgroupMemory> memory;  // the group with the fewest free bytes
};

// `mount` is where the hierarchies are mounted, `membership` the file that names this process's
// groups. What is missing or unreadable sets no limit.
CgroupLimits ReadCgroupLimits(const std::filesystem::path& mount = "/sys/fs/cgroup",
                              const std::filesystem::path& membership = "/proc/self/cgroup");

}  // namespace halfbyte
