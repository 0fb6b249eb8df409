#include "base/json.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "base/file.h"

namespace halfbyte {
namespace {

constexpr int kMaxDepth = 64;

// Throws nothing; remembers the first reason to refuse the text.
struct StrictCallback {
  std::vector<std::set<std::string>> keys;
  std::string problem;

  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth && problem.empty()) {
      problem = fmt::format("nested deeper than {} levels", kMaxDepth);
    }
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second && problem.empty()) {
          problem = fmt::format("key \"{}\" appears twice", parsed.get<std::string>());
        }
        break;
      default:
        break;
    }
    return problem.empty();
  }
};

// Depth is checked before parsing as well: the callback runs too late to protect the recursion of
// destructors and printers.
bool TooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view source) {
  if (TooDeep(text)) return MakeError("{}: JSON nested deeper than {} levels", source, kMaxDepth);
  auto callback = std::make_shared<StrictCallback>();
  try {
    Json value = Json::parse(text, [callback](int depth, Json::parse_event_t event, Json& parsed) {
      return (*callback)(depth, event, parsed);
    });
    if (!callback->problem.empty()) return MakeError("{}: JSON {}", source, callback->problem);
    return value;
  } catch (const Json::exception& e) {
    std::string_view why = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    why.remove_prefix(why.starts_with('[') ? why.find("] ") + 2 : 0);
    return MakeError("{}: not valid JSON: {}", source, why);
  }
}

Result<Json> ReadJsonFile(const std::filesystem::path& path) {
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseJson(text, path.string());
}

JsonObject::JsonObject(const Json& value, std::string source, std::string where)
    : value_(&value), source_(std::move(source)), where_(std::move(where)) {}

Result<JsonObject> JsonObject::Of(const Json& value, std::string source, std::string where) {
  if (!value.is_object()) {
    return MakeError("{}: {} must be an object, not {}", source,
                     where.empty() ? "the top level" : where, value.type_name());
  }
  return JsonObject(value, std::move(source), std::move(where));
}

const Json* JsonObject::Find(std::string_view key) const {
  const auto it = value_->find(std::string(key));
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonObject::Has(std::string_view key) const { return Find(key) != nullptr; }

std::string JsonObject::Describe(std::string_view key) const {
  return where_.empty() ? fmt::format("{}: field {}", source_, key)
                        : fmt::format("{}: field {}.{}", source_, where_, key);
}

tl::unexpected<Error> JsonObject::WrongType(std::string_view key, std::string_view wanted) const {
  return MakeError("{} must be {}, not {}", Describe(key), wanted, Find(key)->type_name());
}

Result<std::optional<int64_t>> JsonObject::Int(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX}) {
    return MakeError("{} is too large: {}", Describe(key), value->dump());
  }
  if (value->is_number_integer()) return value->get<int64_t>();
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::floor(number) == number && std::abs(number) < 9e15) {
      return static_cast<int64_t>(number);
    }
  }
  return WrongType(key, "an integer");
}

Result<std::optional<double>> JsonObject::Number(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return WrongType(key, "a number");
  return value->get<double>();
}

Result<std::optional<bool>> JsonObject::Bool(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return WrongType(key, "true or false");
  return value->get<bool>();
}

Result<std::optional<std::string>> JsonObject::String(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return WrongType(key, "a string");
  return value->get<std::string>();
}

Result<std::optional<JsonObject>> JsonObject::Object(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) return WrongType(key, "an object");
  return JsonObject(*value, source_,
                    where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key));
}

Result<std::optional<const Json*>> JsonObject::Array(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return WrongType(key, "an array");
  return value;
}

}  // namespace halfbyte
