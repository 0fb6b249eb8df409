#include "checkpoint/checkpoint.h"

#include <simdjson.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/file.h"
#include "base/mapped_file.h"
#include "base/memory_plan.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

void AddError(Findings& findings, std::string where, std::string message) {
  findings.push_back({Severity::kError, std::move(where), std::move(message)});
}

// A message that begins with the path, which `where` says already.
void AddFileError(Findings& findings, const fs::path& path, const Error& error) {
  std::string message = error.message;
  if (const std::string prefix = path.string() + ": "; message.starts_with(prefix)) {
    message.erase(0, prefix.size());
  }
  AddError(findings, path.filename().string(), std::move(message));
}

// weight_map of an index: tensor name -> file name, in the order of the file. Indexes reach 40 MB
// (285,660 tensors), hence simdjson.
struct IndexEntry {
  std::string tensor;
  std::string file;
};

Result<std::vector<IndexEntry>> ParseIndex(const fs::path& path) {
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const std::string source = path.string();
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(text).get(root); error != simdjson::SUCCESS) {
    return MakeError("{}: not valid JSON: {}", source, simdjson::error_message(error));
  }
  dom::object map;
  if (root["weight_map"].get(map) != simdjson::SUCCESS) {
    return MakeError("{}: no object weight_map, which must map each tensor to its file", source);
  }
  std::vector<IndexEntry> entries;
  std::unordered_set<std::string_view> seen;
  for (const auto [name, value] : map) {
    std::string_view file;
    if (value.get(file) != simdjson::SUCCESS) {
      return MakeError("{}: weight_map of {} is not a file name", source, name);
    }
    if (!seen.insert(name).second) return MakeError("{}: tensor {} twice", source, name);
    entries.push_back({std::string(name), std::string(file)});
  }
  if (entries.empty()) return MakeError("{}: weight_map is empty", source);
  return entries;
}

// A shard lies in the directory itself or below it, never elsewhere.
bool StaysInside(const std::string& name) {
  const fs::path path(name);
  if (name.empty() || path.is_absolute() || name.find('\0') != std::string::npos) return false;
  return std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

Result<std::vector<fs::path>> SafetensorsIn(const fs::path& directory) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") paths.push_back(it->path());
  }
  if (error) return MakeError("{}: cannot list: {}", directory.string(), error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The length of a file's header; 0 where there is none.
int64_t HeaderBytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  int64_t length = 0;
  if (!file.read(reinterpret_cast<char*>(&length), sizeof(length))) return 0;
  return std::clamp<int64_t>(length, 0, kMaxSafetensorsHeader);
}

// The files mapped, and what is kept of their headers.
MemoryPlan PlanReading(const std::vector<fs::path>& paths, const fs::path& index) {
  constexpr int64_t kKeptPerHeaderByte = 4;
  const auto size = [](const fs::path& path) {
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    return error ? int64_t{0} : static_cast<int64_t>(bytes);
  };
  int64_t mapped = 0, headers = size(index);
  for (const fs::path& path : paths) {
    mapped += size(path);
    headers += HeaderBytes(path);
  }
  MemoryPlan plan;
  plan.Add("headers of its tensors", kKeptPerHeaderByte * headers);
  plan.AddMapped("weights", mapped);
  return plan;
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const fs::path& directory) {
  Findings findings;
  HB_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenWithFindings(directory, findings));
  HB_RETURN_IF_ERROR(StatusOf(findings, directory.string()));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::OpenWithFindings(const fs::path& directory, Findings& findings) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return MakeError("{}: not a directory with a model", directory.string());
  }
  Checkpoint checkpoint(directory);
  HB_ASSIGN_OR_RETURN(std::vector<fs::path> paths, SafetensorsIn(directory));
  const fs::path index = directory / kIndexName;
  HB_RETURN_IF_ERROR(PlanReading(paths, index)
                         .Check(ReadAvailableMemory(), directory.string(), "raise that limit"));
  if (fs::exists(index, error)) {
    checkpoint.has_index_ = true;
    HB_RETURN_IF_ERROR(checkpoint.OpenIndexed(index, findings));
    for (const fs::path& path : paths) {
      const bool owned =
          std::any_of(checkpoint.files_.begin(), checkpoint.files_.end(),
                      [&](const auto& file) { return file->path().filename() == path.filename(); });
      const bool reported = std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
        return f.where == path.filename().string();
      });
      if (!owned && !reported) {
        findings.push_back({Severity::kWarning, path.filename().string(),
                            "stale file: the index does not mention it, so it is ignored"});
      }
    }
    return WithItsMemory(std::move(checkpoint));
  }
  const auto single = std::find_if(paths.begin(), paths.end(), [](const fs::path& path) {
    return path.filename() == kSingleName;
  });
  if (single != paths.end()) {
    for (const fs::path& path : paths) {
      if (path == *single) continue;
      findings.push_back({Severity::kNote, path.filename().string(),
                          "stale file: model.safetensors is the model, so it is ignored"});
    }
    paths = {*single};
  }
  if (paths.empty()) {
    return MakeError("{}: no {} and no *.safetensors file", directory.string(), kIndexName);
  }
  checkpoint.OpenPlain(paths, findings);
  return WithItsMemory(std::move(checkpoint));
}

// What could not be mapped for want of memory is no fault of its file.
Result<Checkpoint> Checkpoint::WithItsMemory(Checkpoint checkpoint) {
  if (checkpoint.no_memory_) return tl::unexpected<Error>(*std::move(checkpoint.no_memory_));
  return checkpoint;
}

Status Checkpoint::OpenIndexed(const fs::path& index, Findings& findings) {
  HB_ASSIGN_OR_RETURN(const std::vector<IndexEntry> entries, ParseIndex(index));
  std::map<std::string, std::vector<const std::string*>> wanted;  // file -> tensors
  for (const IndexEntry& entry : entries) wanted[entry.file].push_back(&entry.tensor);

  for (const auto& [name, tensors] : wanted) {
    const SafetensorsFile* file = OpenShard(name, tensors, findings);
    if (file == nullptr) {
      complete_ = false;
      for (const std::string* tensor : tensors) unread_.push_back(*tensor);
      continue;
    }
    std::unordered_set<std::string_view> owned;
    owned.reserve(tensors.size());
    for (const std::string* tensor : tensors) owned.insert(*tensor);
    for (const TensorInfo& info : file->tensors()) {
      if (owned.erase(info.name) > 0) {
        Add(info, *file);
      } else {
        findings.push_back({Severity::kWarning, info.name,
                            fmt::format("stale copy in {}: the index does not say that this file "
                                        "owns it, so it is ignored",
                                        name)});
      }
    }
    for (const std::string* tensor : tensors) {
      if (owned.contains(*tensor)) {
        AddError(findings, *tensor, fmt::format("missing: the index says {} holds it", name));
      }
    }
  }
  return {};
}

const SafetensorsFile* Checkpoint::OpenShard(const std::string& name,
                                             const std::vector<const std::string*>& tensors,
                                             Findings& findings) {
  std::error_code error;
  if (!StaysInside(name)) {
    AddError(findings, name, "the index names a file outside the model's directory");
  } else if (!fs::exists(directory_ / name, error)) {
    AddError(findings, name,
             fmt::format("missing shard: the index expects {} tensors in it, such as {}",
                         tensors.size(), *tensors.front()));
  } else {
    return OpenFile(directory_ / name, findings);
  }
  return nullptr;
}

void Checkpoint::OpenPlain(const std::vector<fs::path>& paths, Findings& findings) {
  for (const fs::path& path : paths) {
    const SafetensorsFile* file = OpenFile(path, findings);
    if (file == nullptr) {
      complete_ = false;
      continue;
    }
    for (const TensorInfo& info : file->tensors()) {
      if (const CheckpointTensor* other = Find(info.name)) {
        AddError(findings, info.name,
                 fmt::format("both in {} and in {}, and there is no index to decide",
                             other->file->path().filename().string(), path.filename().string()));
        continue;
      }
      Add(info, *file);
    }
  }
}

const SafetensorsFile* Checkpoint::OpenFile(const fs::path& path, Findings& findings) {
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file) {
    if (file.error().kind == ErrorKind::kMemory) no_memory_ = file.error();
    AddFileError(findings, path, file.error());
    return nullptr;
  }
  files_.push_back(std::make_unique<SafetensorsFile>(*std::move(file)));
  return files_.back().get();
}

void Checkpoint::Add(const TensorInfo& info, const SafetensorsFile& file) {
  by_name_.emplace(info.name, tensors_.size());
  tensors_.push_back({&info, &file});
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

int64_t Checkpoint::tensor_bytes() const {
  int64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors_) bytes += tensor.info->bytes;
  return bytes;
}

void CheckCompanionFiles(const fs::path& directory, Findings& findings) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "chat_template.jinja", "generation_config.json", "halfbyte.json"}) {
    std::error_code error;
    const fs::path path = directory / name;
    if (!fs::exists(path, error)) continue;
    const Result<MappedFile> file = MappedFile::Open(path);
    if (!file) AddFileError(findings, path, file.error());
  }
}

}  // namespace halfbyte
