#include "text/json_fields.h"

#include <algorithm>
#include <vector>

namespace halfbyte {

namespace dom = simdjson::dom;

std::string_view JsonTypeName(dom::element value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

Result<JsonFields> JsonFields::Of(dom::element value, std::string source, std::string where,
                                  std::initializer_list<std::string_view> known) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) {
    return MakeError("{}: {} must be an object, not {}", source,
                     where.empty() ? "the top level" : "field " + where, JsonTypeName(value));
  }
  JsonFields fields(object, std::move(source), std::move(where));
  std::vector<std::string_view> seen;
  for (const auto& [key, ignored] : object) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return MakeError("{} is not known; this version cannot tell what it would change",
                       fields.Describe(key.substr(0, 100)));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return MakeError("{} appears twice", fields.Describe(key));
    }
    seen.push_back(key);
  }
  return fields;
}

std::optional<dom::element> JsonFields::Get(std::string_view key) const {
  dom::element value;
  if (object_.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

template <class T>
Result<std::optional<T>> JsonFields::Typed(std::string_view key, std::string_view wanted) const {
  const auto value = Get(key);
  if (!value) return std::nullopt;
  T typed;
  if (value->get(typed) != simdjson::SUCCESS) {
    return MakeError("{} must be {}, not {}", Describe(key), wanted, JsonTypeName(*value));
  }
  return typed;
}

Result<std::optional<bool>> JsonFields::Bool(std::string_view key) const {
  return Typed<bool>(key, "true or false");
}
Result<std::optional<std::string_view>> JsonFields::String(std::string_view key) const {
  return Typed<std::string_view>(key, "a string");
}
Result<std::optional<int64_t>> JsonFields::Int(std::string_view key) const {
  return Typed<int64_t>(key, "an integer");
}
Result<std::optional<dom::array>> JsonFields::Array(std::string_view key) const {
  return Typed<dom::array>(key, "an array");
}
Result<std::optional<dom::object>> JsonFields::Object(std::string_view key) const {
  return Typed<dom::object>(key, "an object");
}

std::string JsonFields::Path(std::string_view key) const {
  return where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key);
}

std::string JsonFields::Describe(std::string_view key) const {
  return fmt::format("{}: field {}", source_, Path(key));
}

}  // namespace halfbyte
