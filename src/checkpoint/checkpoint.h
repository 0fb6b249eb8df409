// A directory of safetensors files as one set of named tensors.
//   - model.safetensors.index.json is there: it alone says which file owns which name; tensors and
//     files it does not mention are stale and ignored (LDR-03).
//   - otherwise model.safetensors alone, otherwise all *.safetensors; a name may occur only once.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/finding.h"
#include "checkpoint/safetensors.h"

namespace halfbyte {

// One tensor and the file it lies in; both outlive it as long as the Checkpoint lives.
struct CheckpointTensor {
  const TensorInfo* info = nullptr;
  const SafetensorsFile* file = nullptr;

  const std::string& name() const { return info->name; }
  TensorView View() const { return file->View(*info); }
  void DropPages() const { file->DropPages(file->Bytes(*info)); }
};

class Checkpoint {
 public:
  // Fails if anything is missing, broken or ambiguous, and says all of it at once; of kind kMemory,
  // if there is no room for the tables or the mappings.
  static Result<Checkpoint> Open(const std::filesystem::path& directory);

  // Opens what can be opened and appends every problem to `findings`. Fails only if there is
  // nothing to look at (no such directory, no safetensors file in it), or no memory to look
  // (kMemory).
  static Result<Checkpoint> OpenWithFindings(const std::filesystem::path& directory,
                                             Findings& findings);

  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  // Null if there is no tensor of that name.
  const CheckpointTensor* Find(std::string_view name) const;
  // By file, then by offset.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const std::filesystem::path& directory() const { return directory_; }
  bool has_index() const { return has_index_; }
  // Whether every file was there and could be read, and else the tensors that the index expects in
  // those that could not; without an index nobody knows them.
  bool complete() const { return complete_; }
  const std::vector<std::string>& unread() const { return unread_; }
  int64_t tensor_bytes() const;  // of all tensors

 private:
  explicit Checkpoint(std::filesystem::path directory) : directory_(std::move(directory)) {}
  static Result<Checkpoint> WithItsMemory(Checkpoint checkpoint);
  Status OpenIndexed(const std::filesystem::path& index, Findings& findings);
  // Null, with a finding, if there is no such shard or it cannot be read.
  const SafetensorsFile* OpenShard(const std::string& name,
                                   const std::vector<const std::string*>& tensors,
                                   Findings& findings);
  void OpenPlain(const std::vector<std::filesystem::path>& paths, Findings& findings);
  const SafetensorsFile* OpenFile(const std::filesystem::path& path, Findings& findings);
  void Add(const TensorInfo& info, const SafetensorsFile& file);

  std::filesystem::path directory_;
  bool has_index_ = false;
  bool complete_ = true;
  std::optional<Error> no_memory_;  // of a file that could not be mapped
  std::vector<std::string> unread_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys live in the files' headers
};

// Of the files that go with the weights and that no checkpoint reads (tokenizer, templates,
// defaults): an error for each that is there and cannot be read, such as a Git LFS pointer.
void CheckCompanionFiles(const std::filesystem::path& directory, Findings& findings);

}  // namespace halfbyte
