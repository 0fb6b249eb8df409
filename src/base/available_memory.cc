#include "base/available_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/cgroup.h"
#include "base/kernel_fields.h"
#include "base/progress.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

void Tighten(std::optional<MemoryBound>& bound, int64_t bytes, std::string where) {
  if (bound && bound->bytes <= bytes) return;
  bound = MemoryBound{std::max<int64_t>(0, bytes), std::move(where)};
}

// A limit of setrlimit against what /proc/self/status says is used.
void TightenByLimit(std::optional<MemoryBound>& bound, const fs::path& proc, int resource,
                    std::string_view used, std::string_view name) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur >= RLIM_INFINITY / 2) return;
  const auto bytes = static_cast<int64_t>(limit.rlim_cur);
  Tighten(bound, bytes - ReadKernelBytes(proc / "self/status", used).value_or(0),
          fmt::format("under {} (limit {})", name, HumanBytes(bytes)));
}

// Only where vm.overcommit_memory is 2 does the kernel keep what it has promised below a limit.
void TightenByCommitLimit(std::optional<MemoryBound>& bound, const fs::path& proc) {
  int mode = 0;
  if (!(std::ifstream(proc / "sys/vm/overcommit_memory") >> mode) || mode != 2) return;
  const auto limit = ReadKernelBytes(proc / "meminfo", "CommitLimit:");
  const auto promised = ReadKernelBytes(proc / "meminfo", "Committed_AS:");
  if (!limit || !promised) return;
  Tighten(bound, *limit - *promised,
          fmt::format("below this machine's commit limit of {}", HumanBytes(*limit)));
}

}  // namespace

AvailableMemory AvailableMemory::ForEachOf(int processes) const {
  AvailableMemory each = *this;
  if (processes < 2 || !each.resident) return each;
  each.resident->bytes /= processes;
  each.resident->where += fmt::format(" for each of {} processes", processes);
  return each;
}

AvailableMemory ReadAvailableMemory(const fs::path& proc, const fs::path& mount) {
  AvailableMemory available;
  if (const auto machine = ReadKernelBytes(proc / "meminfo", "MemAvailable:")) {
    Tighten(available.resident, *machine, "on this machine");
  }
  if (const auto group = ReadCgroupLimits(mount, proc / "self/cgroup").memory) {
    Tighten(available.resident, group->free_bytes,
            fmt::format("in the control group {} (limit {})", group->group,
                        HumanBytes(group->limit_bytes)));
  }
  TightenByCommitLimit(available.resident, proc);
  TightenByLimit(available.resident, proc, RLIMIT_DATA, "VmData:", "RLIMIT_DATA (ulimit -d)");
  TightenByLimit(available.addresses, proc, RLIMIT_AS, "VmSize:", "RLIMIT_AS (ulimit -v)");
  return available;
}

}  // namespace halfbyte
