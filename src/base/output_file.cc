#include "base/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <utility>

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = 0644;  // less the umask

fs::path FolderOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Where the kernel shows an open file, nameless ones too.
std::string NameOfFd(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

// The file itself is synced: its name will be with the next commit if this fails.
void SyncFolder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

Result<OutputFile> OutputFile::Create(const fs::path& path) {
  if (path.filename().empty()) return MakeError("\"{}\": names no file", path.string());
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    return MakeError("{}: is not a regular file and cannot be replaced; name another target",
                     path.string());
  }
  fs::path target = fs::canonical(path, error);
  OutputFile file(path, error ? path : std::move(target));
  HB_RETURN_IF_ERROR(file.Open());
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      fd_(std::exchange(other.fd_, -1)),
      temporary_(std::move(other.temporary_)),
      remover_(std::move(other.remover_)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status OutputFile::Open() {
  fd_ = ::open(FolderOf(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kMode);
  if (fd_ >= 0 && ::access(NameOfFd(fd_).c_str(), F_OK) == 0) return {};
  if (fd_ >= 0) ::close(fd_);
  const fs::path name = NewName();
  fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (fd_ < 0) return MakeError("{}: cannot create: {}", path_.string(), std::strerror(errno));
  temporary_ = name;
  remover_ = TemporaryPath(name);
  return {};
}

Status OutputFile::Commit() {
  if (::fsync(fd_) != 0)
    return MakeError("{}: cannot sync: {}", path_.string(), std::strerror(errno));
  HB_RETURN_IF_ERROR(GiveName());
  SyncFolder(FolderOf(target_));
  return {};
}

Status OutputFile::GiveName() {
  const auto failed = [&] {
    return MakeError("{}: cannot give the file its name: {}", path_.string(), std::strerror(errno));
  };
  if (temporary_.empty()) {
    const auto link = [&](const fs::path& name) {
      return ::linkat(AT_FDCWD, NameOfFd(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) ==
             0;
    };
    if (link(target_)) return {};
    // Something is there to be replaced, which takes a name to be renamed.
    const fs::path name = NewName();
    if (errno != EEXIST || !link(name)) return failed();
    temporary_ = name;
    remover_ = TemporaryPath(name);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return failed();
  remover_.Keep();
  return {};
}

fs::path OutputFile::NewName() const {
  std::random_device device;
  return FolderOf(target_) / fmt::format(".{}.{:08x}", target_.filename().string(), device());
}

}  // namespace halfbyte
