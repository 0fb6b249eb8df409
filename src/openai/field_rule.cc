#include "openai/field_rule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "text/utf8_stream.h"

namespace halfbyte {
namespace {

// What came, for messages: short values as they are.
std::string Shown(const BodyValue& value) {
  switch (value.type()) {
    case BodyValue::value_t::array:
      return fmt::format("a list of {}", value.size());
    case BodyValue::value_t::object:
      return "an object";
    case BodyValue::value_t::null:
      return "null";
    case BodyValue::value_t::string: {
      constexpr size_t kMostShown = 60;
      const auto& text = value.get_ref<const std::string&>();
      if (text.size() <= kMostShown) return value.dump();
      return fmt::format("a string of {} bytes", text.size());
    }
    default:
      return value.dump();
  }
}

ApiError Mismatch(const Rule& rule, const BodyValue& value, const std::string& path) {
  return FieldError("invalid_value", path,
                    fmt::format("{} is {}; it must be {}", path, Shown(value), rule.Describe()));
}

std::string Amount(int64_t least, int64_t most, std::string_view unit) {
  if (most == Rule::kUnlimited)
    return least > 0 ? fmt::format(" of {} or more {}", least, unit) : "";
  return least > 0 ? fmt::format(" of {} to {} {}", least, most, unit)
                   : fmt::format(" of at most {} {}", most, unit);
}

bool Within(int64_t value, const Rule& rule) { return rule.least <= value && value <= rule.most; }

bool NumberFits(const Rule& rule, const BodyValue& value) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  return (rule.above_low ? rule.low < number : rule.low <= number) && number <= rule.high;
}

bool StringFits(const Rule& rule, const BodyValue& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  if (!rule.words.empty()) return std::ranges::find(rule.words, text) != rule.words.end();
  return Within(std::ssize(text), rule);
}

// What the first value of a list may be.
Rule FirstOfLists(const Rule& any_of) {
  std::vector<Rule> items;
  for (const Rule& option : any_of.options) {
    if (option.kind == Rule::Kind::kList) items.push_back(option.options[0]);
  }
  return Rule::AnyOf(std::move(items));
}

// Whether the value is of the rule's JSON type; of a list, whether its first value is.
bool HasTypeOf(const Rule& rule, const BodyValue& value) {
  switch (rule.kind) {
    case Rule::Kind::kBoolean:
      return value.is_boolean();
    case Rule::Kind::kInteger:
    case Rule::Kind::kNumber:
      return value.is_number();
    case Rule::Kind::kString:
      return value.is_string();
    case Rule::Kind::kList:
      return value.is_array() && (value.empty() || HasTypeOf(rule.options[0], value.front()));
    case Rule::Kind::kObject:
    case Rule::Kind::kTokenMap:
      return value.is_object();
    case Rule::Kind::kAnyOf:
      return std::ranges::any_of(rule.options,
                                 [&](const Rule& option) { return HasTypeOf(option, value); });
    case Rule::Kind::kNoEffect:
    case Rule::Kind::kUnsupported:
      return true;
  }
  return false;
}

std::optional<ApiError> CheckObject(const Rule& rule, const BodyValue& value,
                                    const std::string& path, UnknownNames& unknown) {
  for (const auto& [name, member] : value.items()) {
    const auto field = std::ranges::find(rule.fields, name, &Field::name);
    const std::string member_path = JoinPath(path, name);
    if (field == rule.fields.end()) {
      if (rule.closed) {
        std::vector<std::string_view> known;
        for (const Field& each : rule.fields) known.push_back(each.name);
        return FieldError(
            "unknown_field", member_path,
            fmt::format("{} is not known; allowed are {}", member_path, fmt::join(known, ", ")));
      }
      unknown.Add(member_path);
    } else if (field->dropped) {
      unknown.Add(member_path);
    } else if (!member.is_null()) {
      if (auto fault = CheckValue(field->rule, member, member_path, unknown)) return fault;
    }
  }
  for (const Field& field : rule.fields) {
    if (!field.required) continue;
    const auto at = value.find(field.name);
    if (at != value.end() && !at->is_null()) continue;
    const std::string member_path = JoinPath(path, field.name);
    return FieldError(
        "missing_field", member_path,
        fmt::format("{} is missing; it must be {}", member_path, field.rule.Describe()));
  }
  return std::nullopt;
}

std::optional<ApiError> CheckTokenMap(const Rule& rule, const BodyValue& value,
                                      const std::string& path) {
  if (std::ssize(value) > rule.most) return Mismatch(rule, value, path);
  for (const auto& [name, number] : value.items()) {
    const std::string member_path = JoinPath(path, name);
    int64_t id = -1;
    std::from_chars(name.data(), name.data() + name.size(), id);
    if (id < 0 || fmt::to_string(id) != name) {
      return FieldError("invalid_value", member_path,
                        fmt::format("{} has the key {}; keys must be token ids, such as \"42\"",
                                    path, Shown(name)));
    }
    if (!NumberFits(rule, number)) {
      return FieldError("invalid_value", member_path,
                        fmt::format("{} is {}; it must be a number from {} to {}", member_path,
                                    Shown(number), rule.low, rule.high));
    }
  }
  return std::nullopt;
}

std::optional<ApiError> CheckList(const Rule& rule, const BodyValue& value, const std::string& path,
                                  UnknownNames& unknown) {
  if (!value.is_array() || !Within(std::ssize(value), rule)) return Mismatch(rule, value, path);
  // Most lists are long ones of ids: their paths are made only for faults.
  const Rule& item = rule.options[0];
  for (size_t i = 0; i < value.size(); ++i) {
    if (item.kind == Rule::Kind::kInteger) {
      const auto number = AsInteger(value[i]);
      if (number && Within(*number, item)) continue;
    }
    if (auto fault = CheckValue(item, value[i], JoinPath(path, i), unknown)) return fault;
  }
  return std::nullopt;
}

std::optional<ApiError> CheckUnsupported(const Rule& rule, const BodyValue& value,
                                         const std::string& path) {
  if (std::ranges::find(rule.neutral, value) != rule.neutral.end()) return std::nullopt;
  return FieldError("unsupported_parameter", path,
                    fmt::format("{} is {}, which this server does not support; {}", path,
                                Shown(value), rule.Describe()));
}

}  // namespace

Rule Rule::Boolean() { return {.kind = Kind::kBoolean}; }
Rule Rule::NoEffect() { return {.kind = Kind::kNoEffect}; }
Rule Rule::Integer(int64_t least, int64_t most) {
  return {.kind = Kind::kInteger, .least = least, .most = most};
}
Rule Rule::Number(double low, double high) {
  return {.kind = Kind::kNumber, .low = low, .high = high};
}
Rule Rule::NumberAbove(double low, double high) {
  return {.kind = Kind::kNumber, .low = low, .high = high, .above_low = true};
}
Rule Rule::String(int64_t least, int64_t most) {
  return {.kind = Kind::kString, .least = least, .most = most};
}
Rule Rule::OneOf(std::vector<std::string_view> words) {
  return {.kind = Kind::kString, .words = std::move(words)};
}
Rule Rule::List(Rule item, int64_t least, int64_t most) {
  return {.kind = Kind::kList, .least = least, .most = most, .options = {std::move(item)}};
}
Rule Rule::Object(std::vector<Field> fields) {
  return {.kind = Kind::kObject, .fields = std::move(fields)};
}
Rule Rule::ClosedObject(std::vector<Field> fields) {
  return {.kind = Kind::kObject, .closed = true, .fields = std::move(fields)};
}
Rule Rule::TokenMap(double low, double high, int64_t most) {
  return {.kind = Kind::kTokenMap, .most = most, .low = low, .high = high};
}
Rule Rule::AnyOf(std::vector<Rule> options) {
  return {.kind = Kind::kAnyOf, .options = std::move(options)};
}
Rule Rule::Unsupported(std::initializer_list<std::string_view> neutral) {
  Rule rule{.kind = Kind::kUnsupported};
  for (const std::string_view text : neutral) rule.neutral.push_back(BodyValue::parse(text));
  return rule;
}

std::string Rule::Describe() const {
  switch (kind) {
    case Kind::kBoolean:
      return "true or false";
    case Kind::kInteger:
      if (most == Rule::kUnlimited && least == -most - 1) return "an integer of 64 bits";
      return most == Rule::kUnlimited ? fmt::format("an integer of at least {}", least)
                                      : fmt::format("an integer from {} to {}", least, most);
    case Kind::kNumber:
      return above_low ? fmt::format("a number above {}, at most {}", low, high)
                       : fmt::format("a number from {} to {}", low, high);
    case Kind::kString:
      if (words.size() == 1) return fmt::format("\"{}\"", words[0]);
      return words.empty() ? "a string" + Amount(least, most, "bytes")
                           : fmt::format("one of \"{}\"", fmt::join(words, "\", \""));
    case Kind::kList:
      return fmt::format("a list{}, each {}", Amount(least, most, "values"), options[0].Describe());
    case Kind::kObject:
      return "an object";
    case Kind::kTokenMap:
      return fmt::format("an object of at most {} token ids with numbers from {} to {}", most, low,
                         high);
    case Kind::kAnyOf: {
      std::string text;
      for (const Rule& option : options) {
        text += (text.empty() ? "" : ", or ") + option.Describe();
      }
      return text;
    }
    case Kind::kNoEffect:
      return "anything";
    case Kind::kUnsupported: {
      std::string text = "leave it out";
      for (const BodyValue& value : neutral) text += " or set it to " + value.dump();
      return text;
    }
  }
  return "";
}

void UnknownNames::Add(std::string_view path) {
  constexpr size_t kMostBytes = 80;
  if (names_.size() == kMost) return;
  std::string name(path.substr(0, kMostBytes));
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.[]").find(c) != std::string_view::npos;
  };
  std::ranges::replace_if(
      name, [&](char c) { return !plain(c); }, '?');
  names_.push_back(std::move(name));
}

std::optional<ApiError> CheckValue(const Rule& rule, const BodyValue& value,
                                   const std::string& path, UnknownNames& unknown) {
  bool fits = true;
  switch (rule.kind) {
    case Rule::Kind::kBoolean:
      fits = value.is_boolean();
      break;
    case Rule::Kind::kInteger: {
      const auto integer = AsInteger(value);
      fits = integer && Within(*integer, rule);
      break;
    }
    case Rule::Kind::kNumber:
      fits = NumberFits(rule, value);
      break;
    case Rule::Kind::kString:
      fits = StringFits(rule, value);
      break;
    case Rule::Kind::kList:
      return CheckList(rule, value, path, unknown);
    case Rule::Kind::kObject:
      if (value.is_object()) return CheckObject(rule, value, path, unknown);
      fits = false;
      break;
    case Rule::Kind::kTokenMap:
      if (value.is_object()) return CheckTokenMap(rule, value, path);
      fits = false;
      break;
    case Rule::Kind::kAnyOf:
      for (const Rule& option : rule.options) {
        if (HasTypeOf(option, value)) return CheckValue(option, value, path, unknown);
      }
      if (value.is_array()) {
        if (const Rule first = FirstOfLists(rule); !first.options.empty()) {
          return Mismatch(first, value.front(), JoinPath(path, size_t{0}));
        }
      }
      fits = false;
      break;
    case Rule::Kind::kNoEffect:
      break;
    case Rule::Kind::kUnsupported:
      return CheckUnsupported(rule, value, path);
  }
  return fits ? std::nullopt : std::optional(Mismatch(rule, value, path));
}

}  // namespace halfbyte
