#include "base/file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/mapped_file.h"
#include "base/output_file.h"

namespace halfbyte {
namespace {

Status WriteAll(int fd, std::string_view content, const std::filesystem::path& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return MakeError("{}: cannot write: {}", path.string(), std::strerror(errno));
    content.remove_prefix(static_cast<size_t>(written));
  }
  return {};
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
  HB_ASSIGN_OR_RETURN(const OutputFile given_up, OutputFile::Create(path));
  return {};
}

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  HB_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  HB_RETURN_IF_ERROR(WriteAll(file.fd(), content, path));
  return file.Commit();
}

}  // namespace halfbyte
