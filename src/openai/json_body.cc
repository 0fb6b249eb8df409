#include "openai/json_body.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/utf8_stream.h"

namespace halfbyte {
namespace {

// Builds the tree while the parser goes through the text.
class BodyReader : public nlohmann::json_sax<BodyValue> {
 public:
  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Put(value) != nullptr;
  }
  bool string(string_t& value) override { return Put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }  // not in texts
  bool start_object(std::size_t) override { return Open(BodyValue::object()); }
  bool start_array(std::size_t) override { return Open(BodyValue::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (++members_ > kMaxBodyMembers) {
      return Fail("invalid_json",
                  fmt::format("the body has more than {} fields in its objects", kMaxBodyMembers));
    }
    open_.back().key = name;
    const auto [at, added] = open_.back().value->emplace(std::move(name), nullptr);
    member_ = &*at;
    return added || Fail("invalid_json",
                         fmt::format("field {} appears twice in the body", ToValidUtf8(Path())));
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    constexpr int kNumberOverflow = 406;
    if (exception.id == kNumberOverflow) {
      return Fail("invalid_value", "a number of the body is too large for any use");
    }
    std::string_view why =
        exception.what();  // "[json.exception.parse_error.101] parse error at .."
    why.remove_prefix(why.find("] ") + 2);
    return Fail("invalid_json", fmt::format("the body is not valid JSON, at byte {}: {}", position,
                                            ToValidUtf8(why.substr(0, 200))));
  }

  ApiError TakeError() { return std::move(error_); }
  BodyValue TakeTree() { return std::move(tree_); }

 private:
  struct Frame {
    BodyValue* value;
    std::string key;
  };

  template <class T>
  BodyValue* Put(T&& value) {
    if (++values_ > kMaxBodyValues) {
      Fail("invalid_json", fmt::format("the body has more than {} values", kMaxBodyValues));
      return nullptr;
    }
    if (open_.empty()) {
      tree_ = std::forward<T>(value);
      return &tree_;
    }
    BodyValue& parent = *open_.back().value;
    if (parent.is_array()) return &parent.emplace_back(std::forward<T>(value));
    *member_ = std::forward<T>(value);
    return member_;
  }

  bool Open(BodyValue value) {
    if (open_.size() == kMaxBodyDepth) {
      return Fail("invalid_json",
                  fmt::format("the body is nested deeper than {} levels", kMaxBodyDepth));
    }
    BodyValue* placed = Put(std::move(value));
    if (placed != nullptr) open_.push_back({placed, ""});
    return placed != nullptr;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // Of the value that comes next.
  std::string Path() const {
    std::string path;
    for (const Frame& frame : open_) {
      const bool innermost = &frame == &open_.back();
      path = frame.value->is_array() ? JoinPath(path, frame.value->size() - (innermost ? 0 : 1))
                                     : JoinPath(path, frame.key);
    }
    return path;
  }

  bool Fail(std::string_view code, std::string message) {
    error_ = {.code = std::string(code), .message = std::move(message), .param = Path()};
    if (code == "invalid_json") error_.param.clear();
    return false;
  }

  BodyValue tree_;
  std::vector<Frame> open_;
  BodyValue* member_ = nullptr;  // of the innermost object: where its next value goes
  size_t values_ = 0;
  size_t members_ = 0;
  ApiError error_;
};

}  // namespace

ApiResult<BodyValue> ParseBody(std::string_view body) {
  if (body.empty()) {
    return tl::unexpected(
        ApiError{.code = "invalid_json", .message = "the body is empty; it must be a JSON object"});
  }
  BodyReader reader;
  if (!BodyValue::sax_parse(body, &reader)) return tl::unexpected(reader.TakeError());
  BodyValue tree = reader.TakeTree();
  if (tree.is_object()) return tree;
  return tl::unexpected(ApiError{
      .code = "invalid_value",
      .message = fmt::format("the body is a JSON {}; it must be an object", tree.type_name())});
}

std::string JoinPath(std::string_view path, std::string_view name) {
  // Names of strangers may be long, and paths go into errors.
  constexpr size_t kMostBytes = 128;
  name = name.substr(0, kMostBytes);
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

std::string JoinPath(std::string_view path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

const BodyValue* BodyFields::Find(std::string_view name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<bool> BodyFields::Bool(std::string_view name) const {
  const BodyValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  HB_CHECK(value->is_boolean(), "{} was not checked", name);
  return value->get<bool>();
}

std::optional<int64_t> BodyFields::Int(std::string_view name) const {
  const BodyValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const auto integer = AsInteger(*value);
  HB_CHECK(integer, "{} was not checked", name);
  return integer;
}

std::optional<double> BodyFields::Number(std::string_view name) const {
  const BodyValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  HB_CHECK(value->is_number(), "{} was not checked", name);
  return value->get<double>();
}

std::optional<std::string> BodyFields::String(std::string_view name) const {
  const BodyValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  HB_CHECK(value->is_string(), "{} was not checked", name);
  return value->get<std::string>();
}

std::optional<int64_t> AsInteger(const BodyValue& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number <= uint64_t{INT64_MAX} ? std::optional(static_cast<int64_t>(number))
                                         : std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  // Beyond, a double stands for several integers.
  const bool fits = std::abs(number) <= 0x1p53 && std::floor(number) == number;
  return fits ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

}  // namespace halfbyte
