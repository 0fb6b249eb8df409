#include "base/file_watch.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace halfbyte {

Result<FileWatch> FileWatch::Open(const std::vector<std::filesystem::path>& files) {
  const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (fd < 0) {
    return MakeError("files cannot be watched (fs.inotify.max_user_instances): {}",
                     std::strerror(errno));
  }
  FileWatch watch(fd, {});
  for (const std::filesystem::path& file : files) {
    const int number = ::inotify_add_watch(fd, file.c_str(), IN_MODIFY);
    if (number < 0)
      return MakeError("{}: cannot be watched: {}", file.string(), std::strerror(errno));
    watch.files_.resize(std::max(watch.files_.size(), static_cast<size_t>(number)));
    watch.files_[static_cast<size_t>(number) - 1] = file;
  }
  return watch;
}

FileWatch::~FileWatch() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<std::filesystem::path> FileWatch::Changed() {
  alignas(inotify_event) char buffer[sizeof(inotify_event) * 64];
  std::optional<std::filesystem::path> changed;
  ssize_t bytes = 0;
  while ((bytes = ::read(fd_, buffer, sizeof(buffer))) > 0) {
    for (ssize_t at = 0; at < bytes;) {
      inotify_event event{};
      std::memcpy(&event, buffer + at, sizeof(event));
      at += static_cast<ssize_t>(sizeof(event) + event.len);
      // Others say that a file was deleted or unmounted: its pages are there as long as we are.
      const bool modified = (event.mask & IN_MODIFY) != 0;
      if (modified && !changed) changed = files_[static_cast<size_t>(event.wd) - 1];
    }
  }
  return changed;
}

}  // namespace halfbyte
