// Writes one safetensors file whose tensors (name, dtype, shape) are known up front, in bounded
// memory: the header first, then the bytes of any tensor in any order, from any thread.
//
// Layout: no holes. Tensors whose size is a multiple of 64 bytes come first, in the given order,
// then the rest by falling element size; the header is padded with spaces so that the data starts
// at a multiple of 64. So every large tensor starts at a multiple of 64 in the file and every other
// one at a multiple of its element size. Metadata: {"format": "pt"}.
//
// The file is reserved on disk as a whole at the start, so a full disk shows before the work. Only
// Finish gives it its name; of a writer that goes away earlier nothing is left
// (base/output_file.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/output_file.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  // Of a copy of a tensor whose dtype is kUnknown: the name and the size that no table has.
  std::string unknown_dtype = {};
  int64_t unknown_bytes = 0;

  // Of a copy.
  static TensorSpec Of(const TensorInfo& info);

  std::string_view dtype_name() const {
    return dtype == DType::kUnknown ? unknown_dtype : DTypeName(dtype);
  }
  int64_t bytes() const {
    return dtype == DType::kUnknown ? unknown_bytes : ByteCount(dtype, shape);
  }
};

class SafetensorsWriter {
 public:
  // `tensors`: names unique, none "__metadata__".
  // Errors: cannot create (permissions, no such folder), no room for the whole file, `path` is
  // something else than a regular file.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(const std::filesystem::path& path,
                                                           std::vector<TensorSpec> tensors);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes `bytes` at byte `offset` of tensor number `tensor` (its place in `tensors`); within the
  // tensor. Each byte is to be written exactly once. Callable from several threads.
  Status Write(size_t tensor, int64_t offset, std::span<const std::byte> bytes);

  // All bytes have been written: the file is synced and takes its name.
  Status Finish();

  int64_t file_bytes() const { return file_bytes_; }  // header and data

 private:
  SafetensorsWriter(OutputFile file, std::vector<TensorSpec> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}
  Status Begin();
  Status WriteAt(int64_t position, std::span<const std::byte> bytes);

  OutputFile file_;
  const std::vector<TensorSpec> tensors_;
  std::vector<int64_t> starts_;  // position in the file of each tensor
  int64_t file_bytes_ = 0;
  std::atomic<int64_t> written_{0};  // bytes of tensor data so far
};

// Size of the file that SafetensorsWriter makes of these tensors.
int64_t SafetensorsFileBytes(const std::vector<TensorSpec>& tensors);

}  // namespace halfbyte
