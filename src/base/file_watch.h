// Notices when files that a program goes on reading are written to or cut meanwhile. A file that is
// replaced by another of its name is not touched by that and counts as unchanged.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"

namespace halfbyte {

class FileWatch {
 public:
  // From now on. Errors: a file that is not there; the system allows no more watches.
  static Result<FileWatch> Open(const std::vector<std::filesystem::path>& files);
  FileWatch(FileWatch&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), files_(std::move(other.files_)) {}
  FileWatch& operator=(FileWatch&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(files_, other.files_);
    return *this;
  }
  ~FileWatch();

  // A file that has changed since the last call, if any has. Quick: one system call.
  std::optional<std::filesystem::path> Changed();

 private:
  FileWatch(int fd, std::vector<std::filesystem::path> files) : fd_(fd), files_(std::move(files)) {}

  int fd_;
  std::vector<std::filesystem::path> files_;  // by the kernel's numbers, which count from 1
};

}  // namespace halfbyte
