#include "server/process_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <latch>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "base/log.h"

namespace halfbyte {
namespace {

constexpr int64_t kLeastFiles = 48;
// Besides connections: those being turned away, files of the model, our own.
constexpr int64_t kOtherFiles = 320;
// Of the body that a thread of the pool is reading: its text, the tree, ids of tokens, the answer.
constexpr int64_t kReaders = 2;
constexpr int64_t kBytesPerBodyByte = 8;
constexpr int64_t kLeastBody = 64 << 10;

}  // namespace

Status FitToOpenFiles(HttpOptions& http) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const auto files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_max, 1 << 30));
  if (files < kLeastFiles) {
    return MakeError(
        "only {} files may be open (ulimit -n), at least {} are needed; {} let "
        "--max-connections {} be served",
        files, kLeastFiles, http.max_connections + kOtherFiles, http.max_connections);
  }
  const int64_t most = std::max(files - kOtherFiles, files / 4);
  if (most < http.max_connections) {
    spdlog::warn("--max-connections {} is lowered to {}: only {} files may be open (ulimit -n)",
                 http.max_connections, most, files);
    http.max_connections = most;
  }
  return {};
}

int64_t FitToMemory(HttpOptions& http, const AvailableMemory& available) {
  const auto bodies = [&] { return std::max(http.max_bodies_bytes, http.max_body_bytes); };
  const auto all = [&] { return bodies() + kReaders * kBytesPerBodyByte * http.max_body_bytes; };
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const auto& bound : {available.resident, available.addresses}) {
    if (bound) most = std::min(most, bound->bytes / 4);
  }
  if (all() <= most) return all();
  http.max_bodies_bytes = std::min(http.max_bodies_bytes, most / 2);
  const int64_t body = std::max(kLeastBody, most / 2 / (kReaders * kBytesPerBodyByte));
  if (body < http.max_body_bytes) {
    spdlog::warn("--max-request-bytes {} is lowered to {}: requests get a quarter of the memory",
                 http.max_body_bytes, body);
    http.max_body_bytes = body;
  }
  return all();
}

Status CheckThreads(int count) {
  std::latch all_tried(1);
  std::vector<std::thread> threads;
  Status status;
  try {
    threads.reserve(static_cast<size_t>(count));
    while (std::ssize(threads) < count) threads.emplace_back([&] { all_tried.wait(); });
  } catch (const std::system_error& error) {
    status = MakeError(
        "{} threads are needed, only {} can be started (ulimit -u, pids of the "
        "cgroup, memory for their stacks): {}; give it more, or fewer --threads",
        count, threads.size(), error.code().message());
  }
  all_tried.count_down();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace halfbyte
