// The directory a conversion writes into, and the state file by which an interrupted run continues.
//
// halfbyte_convert.state holds JSON lines: first what was asked for (source files with sizes and
// times, options), then the report of each shard that is finished, renamed and synced. A line that
// a crash cut short is dropped. It is locked while a conversion runs and removed at the end.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/convert/report.h"

namespace halfbyte {

// Refuses, before anything is written, a target that is the source or inside it, or a file.
Status CheckTargetPath(const std::filesystem::path& source, const std::filesystem::path& target);

class TargetDirectory {
 public:
  // Creates the directory if there is none. `request` identifies the conversion: one that an
  // earlier run left unfinished with an equal request is continued. Errors: cannot create or write;
  // another process is at work there; an unfinished conversion of another request, or files of
  // another origin. With `overwrite` the last two make room instead: safetensors files, indexes and
  // the state file are removed, other files stay until they are replaced.
  static Result<std::unique_ptr<TargetDirectory>> Prepare(std::filesystem::path directory,
                                                          const Json& request, bool overwrite);
  ~TargetDirectory();  // the state file stays unless Close has removed it
  TargetDirectory(const TargetDirectory&) = delete;
  TargetDirectory& operator=(const TargetDirectory&) = delete;

  const std::filesystem::path& path() const { return directory_; }
  // Of the earlier run, where the shard's file is still there with the same size.
  const std::vector<ShardReport>& finished() const { return finished_; }

  // An error with both numbers if the file system has less than `bytes` free.
  Status CheckRoom(int64_t bytes) const;

  // The shard is complete under its final name. One call at a time.
  Status Record(const ShardReport& shard);

  // All is done: removes the state file.
  Status Close();

 private:
  explicit TargetDirectory(std::filesystem::path directory);
  Status Lock();
  Status Resume(const Json& request, bool overwrite);
  Status CheckEmpty(bool overwrite) const;
  Status StartState(const Json& request);
  Status AppendLine(const Json& line);

  const std::filesystem::path directory_;
  const std::filesystem::path state_path_;
  std::vector<ShardReport> finished_;
  int fd_ = -1;  // of the state file, locked
};

// Copies tokenizer.json, generation_config.json, and whatever else lies in `source` beside the
// weights and the files that the conversion writes itself. Hidden files, weights in other
// formats and links to folders are left out; folders are copied with what they contain.
Status CopyOtherFiles(const std::filesystem::path& source, const std::filesystem::path& target);

}  // namespace halfbyte
