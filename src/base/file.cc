#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/mapped_file.h"

namespace halfbyte {
namespace {

Status WriteAll(int fd, std::string_view content, const std::filesystem::path& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return MakeError("{}: cannot write: {}", path.string(), std::strerror(errno));
    content.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(fd) != 0)
    return MakeError("{}: cannot sync: {}", path.string(), std::strerror(errno));
  return {};
}

Result<int> CreateTemporary(const std::filesystem::path& temporary) {
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return MakeError("{}: cannot create: {}", temporary.string(), std::strerror(errno));
  return fd;
}

}  // namespace

Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t max_bytes) {
  HB_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > max_bytes) {
    return MakeError("{}: {} bytes, more than the {} expected of such a file", path.string(),
                     file.bytes().size(), max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

Status CheckWritable(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return MakeError("{}: is a directory, not a file", path.string());
  }
  const std::filesystem::path temporary = path.string() + ".tmp";
  HB_ASSIGN_OR_RETURN(const int fd, CreateTemporary(temporary));
  ::close(fd);
  ::unlink(temporary.c_str());
  return {};
}

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  HB_ASSIGN_OR_RETURN(const int fd, CreateTemporary(temporary));
  Status status = WriteAll(fd, content, temporary);
  ::close(fd);
  if (status && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = MakeError("{}: cannot rename to {}: {}", temporary.string(), path.string(),
                       std::strerror(errno));
  }
  if (!status) ::unlink(temporary.c_str());
  return status;
}

}  // namespace halfbyte
