// What this process may still take, and what bounds it. One owner: whoever plans asks here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace halfbyte {

// `bytes` more fit below this bound.
struct MemoryBound {
  int64_t bytes = 0;
  std::string where;  // "on this machine", "in the control group /x (limit 1.00 GB)", "under ..."
};

struct AvailableMemory {
  // Memory that must stay: heap, anonymous mappings, stacks. The tightest of: what the machine can
  // give without pushing somebody out, the control groups (version 1 or 2) around this process,
  // RLIMIT_DATA, and the commit limit where the machine keeps one. None if the kernel does not say.
  std::optional<MemoryBound> resident;
  // Addresses, mapped files included: RLIMIT_AS. None without such a limit.
  std::optional<MemoryBound> addresses;

  // What each of so many processes like this one on this machine may take.
  AvailableMemory ForEachOf(int processes) const;
};

// `proc` and `mount`: where the kernel tells of processes and control groups.
AvailableMemory ReadAvailableMemory(const std::filesystem::path& proc = "/proc",
                                    const std::filesystem::path& mount = "/sys/fs/cgroup");

}  // namespace halfbyte
