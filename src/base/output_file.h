// A file that takes its name only when it is complete. Until then it has none at all, where the
// file system knows such files (O_TMPFILE: ext4, xfs, btrfs, tmpfs, overlay), so that nothing is
// left of it however the program ends; elsewhere it has one that is nobody's (".NAME.XXXXXX") and
// that a signal removes (base/temporary_path.h).
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"
#include "base/temporary_path.h"

namespace halfbyte {

class OutputFile {
 public:
  // Errors: `path` names no file, or something else than a regular file is there; the folder cannot
  // be written to. Whatever is there stays as it is until Commit. Of a link, where it leads is
  // meant.
  static Result<OutputFile> Create(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  int fd() const { return fd_; }                               // to write to
  const std::filesystem::path& path() const { return path_; }  // as it was given

  // Syncs and gives it its name, in place of what was there. Once.
  Status Commit();

 private:
  OutputFile(std::filesystem::path path, std::filesystem::path target)
      : path_(std::move(path)), target_(std::move(target)) {}
  Status Open();
  Status GiveName();
  std::filesystem::path NewName() const;

  std::filesystem::path path_;
  std::filesystem::path target_;  // without links
  int fd_ = -1;
  std::filesystem::path temporary_;  // empty: no name so far
  TemporaryPath remover_;
};

}  // namespace halfbyte
