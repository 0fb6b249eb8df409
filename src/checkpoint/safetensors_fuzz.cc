// libFuzzer: no bytes make the header parser crash, and what it accepts lies inside the file.
#include <span>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header =
      halfbyte::ParseSafetensorsHeader(bytes, static_cast<int64_t>(size), "fuzz.safetensors");
  if (!header) return 0;
  int64_t end = 0;
  for (const halfbyte::TensorInfo& tensor : header->tensors) {
    HB_CHECK(tensor.offset >= end && tensor.bytes >= 0, "{} {}", tensor.offset, tensor.bytes);
    end = tensor.offset + tensor.bytes;
    HB_CHECK(end <= static_cast<int64_t>(size), "{} of {}", end, size);
  }
  return 0;
}
