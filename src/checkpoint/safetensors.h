// Reading one safetensors file: 8 bytes little-endian header length, a JSON header, then the
// tensors' bytes without gaps. The header is believed only after every claim in it has been checked
// (cases LDR-01, LDR-04): afterwards a tensor's bytes are known to lie inside the file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t offset = 0;              // of the first byte, from the beginning of the file
  int64_t bytes = 0;               // ByteCount(dtype, shape), unless the dtype is unknown
  std::string unknown_dtype = {};  // what the file calls a kUnknown

  std::string_view dtype_name() const {
    return dtype == DType::kUnknown ? unknown_dtype : DTypeName(dtype);
  }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by offset
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Bytes of the length that stands before the header.
inline constexpr int64_t kSafetensorsLengthField = 8;

// Headers above this size are refused, as other readers of the format do.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// `start` holds the first bytes of the file (at least the whole header, or all there is);
// `file_size` is the size of the file; `source` names the file in errors.
// Errors: length field beyond the file or the limit; not UTF-8 or not a JSON object; duplicate
// names or keys; negative or overflowing shape; fractional, negative, reversed or out-of-file
// offsets; size that does not follow from shape and dtype (whatever it is, of an unknown dtype);
// overlaps; holes; trailing bytes; file size other than 8 + header + largest end.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> start,
                                                 int64_t file_size, std::string_view source);

// A mapped file. Opening touches the header's pages only, so terabytes of sparse files are fine.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t file_bytes() const { return static_cast<int64_t>(file_.bytes().size()); }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const {
    return header_.metadata;
  }

  // `info` must be one of tensors(). The view lives as long as this file.
  TensorView View(const TensorInfo& info) const;
  std::span<const std::byte> Bytes(const TensorInfo& info) const;

  // The pages of these bytes (which must belong to this file) leave resident memory.
  void DropPages(std::span<const std::byte> bytes) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace halfbyte
