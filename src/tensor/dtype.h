// Element types as safetensors names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace halfbyte {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4m3,
  kF8E8m0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

constexpr int64_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4m3:
    case DType::kF8E8m0:
      return 1;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

// What unquantized weights and activations are stored in.
constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

// "BF16", "F8_E4M3", ...
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace halfbyte
