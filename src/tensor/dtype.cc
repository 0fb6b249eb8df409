#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace halfbyte {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 22> kNames = {{
    {DType::kBool, "BOOL"},
    {DType::kF4, "F4"},
    {DType::kF6E2m3, "F6_E2M3"},
    {DType::kF6E3m2, "F6_E3M2"},
    {DType::kU8, "U8"},
    {DType::kI8, "I8"},
    {DType::kF8E5m2, "F8_E5M2"},
    {DType::kF8E4m3, "F8_E4M3"},
    {DType::kF8E8m0, "F8_E8M0"},
    {DType::kF8E4m3Fnuz, "F8_E4M3FNUZ"},
    {DType::kF8E5m2Fnuz, "F8_E5M2FNUZ"},
    {DType::kI16, "I16"},
    {DType::kU16, "U16"},
    {DType::kF16, "F16"},
    {DType::kBf16, "BF16"},
    {DType::kI32, "I32"},
    {DType::kU32, "U32"},
    {DType::kF32, "F32"},
    {DType::kC64, "C64"},
    {DType::kF64, "F64"},
    {DType::kI64, "I64"},
    {DType::kU64, "U64"},
}};

}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const auto& [type, type_name] : kNames) {
    if (type_name == name) return type;
  }
  return std::nullopt;
}

}  // namespace halfbyte
