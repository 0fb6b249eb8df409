#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kAlignment = 64;

struct FileLayout {
  std::string head;             // length field, header, padding
  std::vector<int64_t> starts;  // position in the file of each tensor
  int64_t file_bytes = 0;
};

// The order of the data in the file, as indices into `tensors`.
std::vector<size_t> DataOrder(const std::vector<TensorSpec>& tensors) {
  const auto rank = [&](size_t i) {
    return tensors[i].bytes() % kAlignment == 0 ? kAlignment : DTypeSize(tensors[i].dtype);
  };
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rank(a) > rank(b); });
  return order;
}

FileLayout LayOut(const std::vector<TensorSpec>& tensors) {
  Json header = Json::object();
  header["__metadata__"] = {{"format", "pt"}};
  FileLayout layout;
  layout.starts.resize(tensors.size());
  int64_t offset = 0;
  std::set<std::string_view> names = {"__metadata__"};
  for (const size_t i : DataOrder(tensors)) {
    const TensorSpec& tensor = tensors[i];
    HB_CHECK(names.insert(tensor.name).second, "tensor {} twice", tensor.name);
    layout.starts[i] = offset;
    // push_back: assignment by key would search all earlier keys.
    header.get_ref<Json::object_t&>().push_back(
        {tensor.name, Json{{"dtype", tensor.dtype_name()},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}}});
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  const auto length = static_cast<int64_t>(text.size());
  text.append(static_cast<size_t>(RoundUp(kSafetensorsLengthField + length, kAlignment) -
                                  kSafetensorsLengthField - length),
              ' ');
  static_assert(std::endian::native == std::endian::little);
  const uint64_t field = text.size();
  layout.head.assign(reinterpret_cast<const char*>(&field), sizeof(field));
  layout.head += text;
  const auto data_start = static_cast<int64_t>(layout.head.size());
  for (int64_t& start : layout.starts) start += data_start;
  layout.file_bytes = data_start + offset;
  return layout;
}

// Why writing `path` failed, with the remedy where there is one.
tl::unexpected<Error> WriteError(const std::filesystem::path& path, int64_t size, int error) {
  if (error == ENOSPC || error == EDQUOT) {
    struct statvfs info {};
    const std::string folder = path.parent_path().empty() ? "." : path.parent_path().string();
    const bool known = error == ENOSPC && ::statvfs(folder.c_str(), &info) == 0;
    return MakeError("{}: no room for {} bytes{}; free some space or choose another target",
                     path.string(), size,
                     known ? fmt::format(" ({} free)", info.f_bavail * info.f_frsize) : "");
  }
  if (error == EFBIG) {
    return MakeError(
        "{}: {} bytes are more than the file system or the file size limit (ulimit -f) "
        "allows",
        path.string(), size);
  }
  return MakeError("{}: cannot write: {}", path.string(), std::strerror(error));
}

}  // namespace

TensorSpec TensorSpec::Of(const TensorInfo& info) {
  return {info.name, info.dtype, info.shape, info.unknown_dtype, info.bytes};
}

int64_t SafetensorsFileBytes(const std::vector<TensorSpec>& tensors) {
  return LayOut(tensors).file_bytes;
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::filesystem::path& path, std::vector<TensorSpec> tensors) {
  HB_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  std::unique_ptr<SafetensorsWriter> writer(
      new SafetensorsWriter(std::move(file), std::move(tensors)));
  HB_RETURN_IF_ERROR(writer->Begin());
  return writer;
}

Status SafetensorsWriter::Begin() {
  FileLayout layout = LayOut(tensors_);
  starts_ = std::move(layout.starts);
  file_bytes_ = layout.file_bytes;
  // fallocate, not posix_fallocate: where the file system cannot reserve, the latter would write
  // zeros over the whole length instead.
  if (::fallocate(file_.fd(), 0, 0, file_bytes_) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    return WriteError(file_.path(), file_bytes_, errno);
  }
  return WriteAt(0, std::as_bytes(std::span(layout.head)));
}

Status SafetensorsWriter::Write(size_t tensor, int64_t offset, std::span<const std::byte> bytes) {
  HB_CHECK(tensor < tensors_.size(), "tensor {} of {}", tensor, tensors_.size());
  const auto size = static_cast<int64_t>(bytes.size());
  HB_CHECK(offset >= 0 && offset + size <= tensors_[tensor].bytes(), "{}: [{}, +{}) of {} bytes",
           tensors_[tensor].name, offset, size, tensors_[tensor].bytes());
  written_ += size;
  return WriteAt(starts_[tensor] + offset, bytes);
}

Status SafetensorsWriter::WriteAt(int64_t position, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file_.fd(), bytes.data(), bytes.size(), position);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return WriteError(file_.path(), file_bytes_, errno);
    bytes = bytes.subspan(static_cast<size_t>(count));
    position += count;
  }
  return {};
}

Status SafetensorsWriter::Finish() {
  int64_t wanted = 0;
  for (const TensorSpec& tensor : tensors_) wanted += tensor.bytes();
  HB_CHECK(written_ == wanted, "{}: {} of {} data bytes written", file_.path().string(),
           written_.load(), wanted);
  return file_.Commit();
}

}  // namespace halfbyte
