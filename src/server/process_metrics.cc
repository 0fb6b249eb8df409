#include "server/process_metrics.h"

#include <prometheus/counter.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace halfbyte {
namespace {

prometheus::Gauge& NewGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

ProcessMetrics::ProcessMetrics(prometheus::Registry& registry)
    : cpu_seconds_(prometheus::BuildCounter()
                       .Name("process_cpu_seconds_total")
                       .Help("Processor time, user and system")
                       .Register(registry)
                       .Add({})),
      resident_bytes_(NewGauge(registry, "process_resident_memory_bytes", "Resident memory")),
      virtual_bytes_(NewGauge(registry, "process_virtual_memory_bytes", "Address space")),
      open_fds_(NewGauge(registry, "process_open_fds", "Open files")),
      max_fds_(NewGauge(registry, "process_max_fds", "Files that may be open")),
      threads_(NewGauge(registry, "process_threads", "Threads")),
      start_time_(NewGauge(registry, "process_start_time_seconds", "Start, seconds since 1970")) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  start_time_.Set(std::chrono::duration<double>(now).count());
}

void ProcessMetrics::Update() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    const double total = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
    cpu_seconds_.Increment(std::max(0., total - cpu_seconds_.Value()));
  }
  double pages = 0, resident = 0;
  if (std::ifstream("/proc/self/statm") >> pages >> resident) {
    const auto page = static_cast<double>(::sysconf(_SC_PAGESIZE));
    virtual_bytes_.Set(pages * page);
    resident_bytes_.Set(resident * page);
  }
  const auto entries = [](const char* directory) {
    std::error_code error;
    double count = 0;
    for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      ++count;
    }
    return count;
  };
  open_fds_.Set(entries("/proc/self/fd"));
  threads_.Set(entries("/proc/self/task"));
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) max_fds_.Set(static_cast<double>(files.rlim_cur));
}

}  // namespace halfbyte
