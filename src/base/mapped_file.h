// A whole file mapped read-only. Pages come from the page cache on first touch.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace halfbyte {

class MappedFile {
 public:
  // Errors: missing, unreadable, not a regular file, a Git LFS pointer, which nobody means to read.
  // An empty file maps to an empty span.
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the kernel that these bytes are not needed for now: their pages (also those shared with
  // neighbours) leave resident memory and come back from the file when touched again.
  void DropPages(size_t offset, size_t length) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size);
  void Unmap();

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// What becomes of a program that reads a mapped file where somebody has truncated it meanwhile. (A
// file replaced by rename keeps its old content.) One of:
// It ends with exit code 1 and a sentence on stderr, not with a crash.
void ExitWhenAMappedFileIsTruncated();
// It reads zeros there and is to ask, before it uses what it made of them, whether that happened.
void ReadZerosWhereAMappedFileIsTruncated();
bool HasReadTruncatedFiles();

}  // namespace halfbyte
