// Limits that control groups (version 1 or 2) put on this process: the tightest of its group and
// the groups around it. Containers are limited this way, not by the number of processors they see.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace halfbyte {

struct CgroupLimits {
  std::optional<double> processors;     // CPU time per wall time
  std::optional<int64_t> memory_bytes;  // of the whole group
};

// `mount` is where the hierarchies are mounted, `membership` the file that names this process's
// groups. What is missing or unreadable sets no limit.
CgroupLimits ReadCgroupLimits(const std::filesystem::path& mount = "/sys/fs/cgroup",
                              const std::filesystem::path& membership = "/proc/self/cgroup");

}  // namespace halfbyte
