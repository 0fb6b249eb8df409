#include "base/json.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/file.h"

namespace halfbyte {
namespace {

constexpr int kMaxDepth = 64;

// What JSON lacks and Python's json module writes. The parser sees a string that begins with a
// character which no name or text of a model has; so does the printer.
constexpr std::array<std::pair<std::string_view, double>, 3> kNonFinite = {{
    {"NaN", std::numeric_limits<double>::quiet_NaN()},
    {"Infinity", std::numeric_limits<double>::infinity()},
    {"-Infinity", -std::numeric_limits<double>::infinity()},
}};
constexpr char kMark = '\x01';
constexpr std::string_view kEscapedMark = "\\u0001";

std::string_view NonFiniteName(double number) {
  if (std::isnan(number)) return "NaN";
  return number > 0 ? "Infinity" : "-Infinity";
}

// A number in place of its marked name.
void Unmark(Json& parsed) {
  if (!parsed.is_string()) return;
  const auto& text = parsed.get_ref<const std::string&>();
  if (!text.starts_with(kMark)) return;
  for (const auto& [name, number] : kNonFinite) {
    if (std::string_view(text).substr(1) == name) {
      parsed = number;
      return;
    }
  }
}

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
        if (parsed.get_ref<const std::string&>().starts_with(kMark)) problem = "key is a number";
        break;
      case Json::parse_event_t::value:
        Unmark(parsed);
        break;
      default:
        break;
    }
    return problem.empty();
  }
};

// The text as the parser takes it, with marked names for numbers that JSON lacks; nothing if it is
// nested too deep. The callback would notice that too late to protect the recursion of destructors
// and printers.
std::optional<std::string> Prepared(std::string_view text) {
  std::string prepared;
  size_t copied = 0;
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
      if (++depth > kMaxDepth) return std::nullopt;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == 'N' || c == 'I' || c == '-') {
      for (const auto& [name, number] : kNonFinite) {
        if (!text.substr(i).starts_with(name)) continue;
        prepared.append(text.substr(copied, i - copied));
        prepared.append(fmt::format("\"{}{}\"", kEscapedMark, name));
        copied = i + name.size();
        i = copied - 1;
        break;
      }
    }
  }
  return prepared.append(text.substr(copied));
}

// Every number that JSON lacks becomes its marked name.
void Mark(Json& value) {
  if (value.is_structured()) {
    for (Json& child : value) Mark(child);
  } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    value = kMark + std::string(NonFiniteName(value.get<double>()));
  }
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view source) {
  const std::optional<std::string> prepared = Prepared(text);
  if (!prepared) return MakeError("{}: JSON nested deeper than {} levels", source, kMaxDepth);
  auto callback = std::make_shared<StrictCallback>();
  try {
    Json value =
        Json::parse(*prepared, [callback](int depth, Json::parse_event_t event, Json& parsed) {
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

std::string PrintedJson(Json value, int indent) {
  Mark(value);
  std::string text = value.dump(indent);
  for (const auto& [name, number] : kNonFinite) {
    const std::string marked = fmt::format("\"{}{}\"", kEscapedMark, name);
    for (size_t at = 0; (at = text.find(marked, at)) != std::string::npos; at += name.size()) {
      text.replace(at, marked.size(), name);
    }
  }
  return text;
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
  const Json& value = *Find(key);
  const bool number = value.is_number_float() && !std::isfinite(value.get<double>());
  return MakeError("{} must be {}, not {}", Describe(key), wanted,
                   number ? NonFiniteName(value.get<double>()) : value.type_name());
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
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    return WrongType(key, "a finite number");
  }
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
