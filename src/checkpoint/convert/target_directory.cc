#include "checkpoint/convert/target_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/mapped_file.h"
#include "base/progress.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStateName = "halfbyte_convert.state";

bool EndsWithAny(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

// What a conversion writes and --overwrite clears.
bool IsConversionFile(std::string_view name) {
  return name == kStateName || name == "hf_quant_config.json" ||
         EndsWithAny(name, {".safetensors", ".safetensors.index.json"});
}

bool IsCopied(std::string_view name) {
  return !name.starts_with('.') &&
         !EndsWithAny(name, {".safetensors", ".safetensors.index.json"}) &&
         !EndsWithAny(name, {".bin", ".pt", ".pth", ".gguf", ".ckpt", ".bin.index.json", ".tmp"});
}

Result<std::vector<fs::directory_entry>> EntriesOf(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  if (error) return MakeError("{}: cannot list: {}", directory.string(), error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// "format \"nvfp4\" there, \"bf16\" asked for"
std::string Difference(const Json& there, const Json& wanted) {
  for (const auto& [key, value] : wanted.items()) {
    const Json other = there.is_object() && there.contains(key) ? there[key] : Json(nullptr);
    if (other == value) continue;
    if (value.is_primitive() && other.is_primitive()) {
      return fmt::format("{} {} there, {} asked for", key, other.dump(), value.dump());
    }
    return key + " differ";
  }
  return "written by another version of halfbyte";
}

Status CopyEntry(const fs::directory_entry& entry, const fs::path& target);

Status CopyFolder(const fs::path& source, const fs::path& target) {
  std::error_code error;
  fs::create_directories(target, error);
  if (error) return MakeError("{}: cannot create: {}", target.string(), error.message());
  HB_ASSIGN_OR_RETURN(const auto entries, EntriesOf(source));
  for (const fs::directory_entry& entry : entries) {
    HB_RETURN_IF_ERROR(CopyEntry(entry, target / entry.path().filename()));
  }
  return {};
}

Status CopyEntry(const fs::directory_entry& entry, const fs::path& target) {
  if (!IsCopied(entry.path().filename().string())) return {};
  std::error_code error;
  if (entry.is_directory(error)) {
    // A linked folder may lead back up or to all the world.
    return entry.is_symlink(error) ? Status() : CopyFolder(entry.path(), target);
  }
  if (!entry.is_regular_file(error)) return {};
  HB_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(entry.path()));
  return WriteFileAtomically(
      target, {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

}  // namespace

Status CheckTargetPath(const fs::path& source, const fs::path& target) {
  std::error_code error;
  const fs::path from = fs::weakly_canonical(source, error);
  const fs::path to = fs::weakly_canonical(target, error);
  if (error) return MakeError("{}: {}", target.string(), error.message());
  const auto [a, b] = std::mismatch(from.begin(), from.end(), to.begin(), to.end());
  if (a == from.end()) {
    return MakeError("{}: is {} {}; name a target outside of it", target.string(),
                     b == to.end() ? "the source" : "inside the source", source.string());
  }
  if (fs::exists(to, error) && !fs::is_directory(to, error)) {
    return MakeError("{}: is a file; name a directory as the target", target.string());
  }
  return {};
}

Result<std::unique_ptr<TargetDirectory>> TargetDirectory::Prepare(fs::path directory,
                                                                  const Json& request,
                                                                  bool overwrite) {
  std::unique_ptr<TargetDirectory> target(new TargetDirectory(std::move(directory)));
  std::error_code error;
  fs::create_directories(target->directory_, error);
  if (error) {
    return MakeError("{}: cannot create the target: {}", target->directory_.string(),
                     error.message());
  }
  const bool unfinished = fs::exists(target->state_path_, error);
  if (!unfinished) HB_RETURN_IF_ERROR(target->CheckEmpty(overwrite));
  HB_RETURN_IF_ERROR(target->Lock());
  if (unfinished) HB_RETURN_IF_ERROR(target->Resume(request, overwrite));
  HB_RETURN_IF_ERROR(target->StartState(request));
  return target;
}

TargetDirectory::TargetDirectory(fs::path directory)
    : directory_(std::move(directory)), state_path_(directory_ / kStateName) {}

TargetDirectory::~TargetDirectory() {
  if (fd_ >= 0) ::close(fd_);
}

Status TargetDirectory::CheckEmpty(bool overwrite) const {
  HB_ASSIGN_OR_RETURN(const auto entries, EntriesOf(directory_));
  if (!entries.empty() && !overwrite) {
    return MakeError("{}: is not empty; name a new directory or pass --overwrite",
                     directory_.string());
  }
  return {};
}

Status TargetDirectory::Lock() {
  fd_ = ::open(state_path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    return MakeError("{}: cannot write into the target: {}", directory_.string(),
                     std::strerror(errno));
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    return MakeError("{}: another conversion is writing there; wait for it or name another target",
                     directory_.string());
  }
  return {};
}

// Reads what an earlier run left: `finished_` if it was after the same.
Status TargetDirectory::Resume(const Json& request, bool overwrite) {
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(state_path_, size_t{4} << 30));
  std::vector<std::string_view> lines;
  for (std::string_view rest = text; rest.find('\n') != std::string_view::npos;
       rest.remove_prefix(rest.find('\n') + 1)) {
    lines.push_back(rest.substr(0, rest.find('\n')));
  }
  if (lines.empty()) return {};  // stopped before the first line was complete
  const auto earlier = ParseJson(lines[0], state_path_.string());
  if (!earlier || *earlier != request) {
    if (overwrite) return {};
    return MakeError(
        "{}: holds an unfinished conversion with other arguments ({}); repeat those, name another "
        "target, or pass --overwrite to start again",
        directory_.string(), Difference(earlier ? *earlier : Json(), request));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    HB_ASSIGN_OR_RETURN(const Json line, ParseJson(lines[i], state_path_.string()));
    HB_ASSIGN_OR_RETURN(ShardReport shard, ParseShardReport(line, state_path_.string()));
    std::error_code error;
    const auto size = fs::file_size(directory_ / shard.file, error);
    if (!error && static_cast<int64_t>(size) == shard.file_bytes) {
      finished_.push_back(std::move(shard));
    }
  }
  return {};
}

// Clears what does not belong to the finished shards and writes the state anew.
Status TargetDirectory::StartState(const Json& request) {
  HB_ASSIGN_OR_RETURN(const auto entries, EntriesOf(directory_));
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    const bool keep = std::any_of(finished_.begin(), finished_.end(),
                                  [&](const ShardReport& shard) { return shard.file == name; });
    std::error_code error;
    if (keep || name == kStateName || !IsConversionFile(name) || entry.is_directory(error))
      continue;
    fs::remove(entry.path(), error);
    if (error) return MakeError("{}: cannot remove: {}", entry.path().string(), error.message());
  }
  if (::ftruncate(fd_, 0) != 0) {
    return MakeError("{}: cannot write: {}", state_path_.string(), std::strerror(errno));
  }
  HB_RETURN_IF_ERROR(AppendLine(request));
  for (const ShardReport& shard : finished_) HB_RETURN_IF_ERROR(AppendLine(ToJson(shard)));
  return {};
}

Status TargetDirectory::AppendLine(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(fd_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return MakeError("{}: cannot write: {}", state_path_.string(), std::strerror(errno));
    }
    done += static_cast<size_t>(count);
  }
  if (::fsync(fd_) != 0) {
    return MakeError("{}: cannot sync: {}", state_path_.string(), std::strerror(errno));
  }
  return {};
}

Status TargetDirectory::CheckRoom(int64_t bytes) const {
  struct statvfs info {};
  if (::statvfs(directory_.c_str(), &info) != 0) return {};  // the writer will find out
  const auto available = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  if (available >= bytes) return {};
  return MakeError(
      "{}: the result needs {} more, only {} are free there; free some space or choose "
      "another target",
      directory_.string(), HumanQuantity(static_cast<double>(bytes), "B"),
      HumanQuantity(static_cast<double>(available), "B"));
}

Status TargetDirectory::Record(const ShardReport& shard) { return AppendLine(ToJson(shard)); }

Status TargetDirectory::Close() {
  std::error_code error;
  fs::remove(state_path_, error);
  if (error) return MakeError("{}: cannot remove: {}", state_path_.string(), error.message());
  return {};
}

Status CopyOtherFiles(const fs::path& source, const fs::path& target) {
  HB_ASSIGN_OR_RETURN(const auto entries, EntriesOf(source));
  for (const fs::directory_entry& entry : entries) {
    const fs::path name = entry.path().filename();
    if (name == "config.json" || IsConversionFile(name.string())) continue;
    HB_RETURN_IF_ERROR(CopyEntry(entry, target / name));
  }
  return {};
}

}  // namespace halfbyte
