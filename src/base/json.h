// JSON in, with errors that name the file and the field. Output uses nlohmann::ordered_json as it
// is, or PrintedJson where numbers may be NaN or infinite.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

using Json = nlohmann::ordered_json;

// `source` names the text in errors. Duplicate keys, trailing text, nesting deeper than 64 and
// invalid UTF-8 are errors. NaN, Infinity and -Infinity are numbers, as Python's json module writes
// and reads them by default.
Result<Json> ParseJson(std::string_view text, std::string_view source);
Result<Json> ReadJsonFile(const std::filesystem::path& path);

// The inverse, so NaN and Infinity stay what they are; Json::dump would make them null.
std::string PrintedJson(Json value, int indent);

// A JSON object of one file, read field by field. Absent and null both mean "not there".
// A field of another type is an error; numbers do not come out of strings, and are finite.
class JsonObject {
 public:
  // Error if `value` is no object. `source` and `where` ("rope_parameters.main") appear in errors.
  static Result<JsonObject> Of(const Json& value, std::string source, std::string where = "");

  bool Has(std::string_view key) const;
  Result<std::optional<int64_t>> Int(std::string_view key) const;  // 5.0 counts as an integer
  Result<std::optional<double>> Number(std::string_view key) const;
  Result<std::optional<bool>> Bool(std::string_view key) const;
  Result<std::optional<std::string>> String(std::string_view key) const;
  Result<std::optional<JsonObject>> Object(std::string_view key) const;
  Result<std::optional<const Json*>> Array(std::string_view key) const;

  // "config.json: field rope_parameters.main.factor", for errors about a value.
  std::string Describe(std::string_view key) const;
  const Json& json() const { return *value_; }

 private:
  JsonObject(const Json& value, std::string source, std::string where);
  const Json* Find(std::string_view key) const;
  tl::unexpected<Error> WrongType(std::string_view key, std::string_view wanted) const;

  const Json* value_;
  std::string source_;
  std::string where_;
};

}  // namespace halfbyte
