// Structs of the C interface begin with the size that their user's header gave them. A shorter one
// comes from an older header: the rest counts as zero. A longer one comes from a newer header: fine
// as long as what we do not know is zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

namespace internal {

// Beyond this a size is taken for an uninitialized struct.
inline constexpr uint64_t kMaxStructSize = 4096;

// The size in the first 8 bytes at `from`; `first` is that of the struct's first version.
inline Result<size_t> StructSize(const void* from, size_t first, std::string_view name) {
  if (from == nullptr) return MakeError("{} is NULL", name);
  uint64_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  if (size < first || size > kMaxStructSize) {
    return MakeError(
        "{}: struct_size is {} where at least {} is expected; initialise the struct with "
        "HALFBYTE_MOE_INIT",
        name, size, first);
  }
  return static_cast<size_t>(size);
}

}  // namespace internal

// A copy of *from. `first` is sizeof(T) of the first version. Errors: NULL, a size that no version
// had, fields set that this version lacks. `name` says what it is.
template <class T>
Result<T> ReadStruct(const T* from, size_t first, std::string_view name) {
  HB_ASSIGN_OR_RETURN(const size_t size, internal::StructSize(from, first, name));
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != std::byte{0}) {
      return MakeError(
          "{}: a field at byte {} is set, which this version of libhalfbyte (ABI {}) does not "
          "know; "
          "install a newer one",
          name, i, HALFBYTE_MOE_ABI_VERSION);
    }
  }
  T value{};
  std::memcpy(&value, from, std::min(size, sizeof(T)));
  return value;
}

// Fills the part of *to that its owner knows; what we do not know becomes zero.
template <class T>
Status WriteStruct(T value, size_t first, T* to, std::string_view name) {
  HB_ASSIGN_OR_RETURN(const size_t size, internal::StructSize(to, first, name));
  value.struct_size = size;
  auto* bytes = reinterpret_cast<std::byte*>(to);
  std::memset(bytes, 0, size);
  std::memcpy(bytes, &value, std::min(size, sizeof(T)));
  return {};
}

}  // namespace halfbyte
