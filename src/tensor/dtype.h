// Element types as safetensors names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace halfbyte {

// All that version 0.8.0 of the format's own library knows.
enum class DType : uint8_t {
  kBool,
  kF4,  // E2M1, two to a byte, the first in the low half
  kF6E2m3,
  kF6E3m2,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kF8E4m3Fnuz,
  kF8E5m2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,  // two F32
  kF64,
  kI64,
  kU64,
  kUnknown  // of a later version: no name, no size
};

// Of one element; 0 for kUnknown.
constexpr int64_t DTypeBits(DType dtype) {
  switch (dtype) {
    case DType::kUnknown:
      return 0;
    case DType::kF4:
      return 4;
    case DType::kF6E2m3:
    case DType::kF6E3m2:
      return 6;
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E5m2:
    case DType::kF8E4m3:
    case DType::kF8E8m0:
    case DType::kF8E4m3Fnuz:
    case DType::kF8E5m2Fnuz:
      return 8;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBf16:
      return 16;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 32;
    case DType::kC64:
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 64;
  }
  return 0;
}

// Bytes of one element; 0 for what is smaller than a byte.
constexpr int64_t DTypeSize(DType dtype) { return DTypeBits(dtype) / 8; }

// What unquantized weights and activations are stored in.
constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

// "BF16", "F8_E4M3", ...
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace halfbyte
