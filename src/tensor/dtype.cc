#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace halfbyte {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 15> kNames = {{
    {DType::kBool, "BOOL"},
    {DType::kU8, "U8"},
    {DType::kI8, "I8"},
    {DType::kF8E4m3, "F8_E4M3"},
    {DType::kF8E8m0, "F8_E8M0"},
    {DType::kI16, "I16"},
    {DType::kU16, "U16"},
    {DType::kF16, "F16"},
    {DType::kBf16, "BF16"},
    {DType::kI32, "I32"},
    {DType::kU32, "U32"},
    {DType::kF32, "F32"},
    {DType::kI64, "I64"},
    {DType::kU64, "U64"},
    {DType::kF64, "F64"},
}};

}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const auto& [type, type_name] : kNames) {
    if (type_name == name) return type;
  }
  return std::nullopt;
}

}  // namespace halfbyte
