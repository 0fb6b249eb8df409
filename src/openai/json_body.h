// Bodies of requests: JSON of strangers into a tree, and its fields out of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "openai/api_error.h"

namespace halfbyte {

// Unlike base/json.h, whose ordered objects take quadratic time, this tree is safe to fill with
// whatever comes.
using BodyValue = nlohmann::json;

inline constexpr size_t kMaxBodyDepth = 64;
inline constexpr size_t kMaxBodyValues = size_t{4} << 20;  // of 16 bytes
inline constexpr size_t kMaxBodyMembers = 200'000;         // of objects, about 100 bytes

// The body's object. Errors: `invalid_json` with the place for what is no UTF-8 or no JSON, a key
// that appears twice, too much depth or size; `invalid_value` for another top level and, with the
// field's path, for a number that no double holds.
ApiResult<BodyValue> ParseBody(std::string_view body);

// "messages[2]" and "content" make "messages[2].content".
std::string JoinPath(std::string_view path, std::string_view name);
std::string JoinPath(std::string_view path, size_t index);

// The fields of an object that was checked against the table (field_table.h): another type than the
// one asked for is a fault of ours. Null is absent.
class BodyFields {
 public:
  explicit BodyFields(const BodyValue& object) : object_(object) {}

  const BodyValue* Find(std::string_view name) const;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  std::optional<bool> Bool(std::string_view name) const;
  std::optional<int64_t> Int(std::string_view name) const;  // 5.0 is 5
  std::optional<double> Number(std::string_view name) const;
  std::optional<std::string> String(std::string_view name) const;

 private:
  const BodyValue& object_;
};

// An integer in whatever way it is written: 5, 5.0, 5e0. None if it is no int64, or written with a
// point or exponent and beyond 2^53.
std::optional<int64_t> AsInteger(const BodyValue& value);

}  // namespace halfbyte
