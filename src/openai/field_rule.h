// What a JSON value of a body may be. A rule is data: it checks values (with messages that say what
// came and what is allowed) and describes itself as a JSON schema, so the two cannot disagree.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "openai/api_error.h"
#include "openai/json_body.h"

namespace halfbyte {

struct Field;

struct Rule {
  enum class Kind {
    kBoolean,
    kInteger,      // [least, most]; 5.0 counts, booleans do not
    kNumber,       // [low, high], or (low, high] if `above_low`
    kString,       // least .. most bytes; one of `words` if there are any
    kList,         // least .. most values, each by options[0]
    kObject,       // `fields`
    kTokenMap,     // an object from token ids to numbers in [low, high], at most `most`
    kAnyOf,        // one of `options`: told apart by their JSON types, of lists by the first value
    kNoEffect,     // anything: it asks nothing of the model
    kUnsupported,  // known to the API; null or one of `neutral`, which ask for nothing
  };
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  Kind kind = Kind::kNoEffect;
  int64_t least = 0;
  int64_t most = kUnlimited;
  double low = 0;
  double high = 0;
  bool above_low = false;
  bool closed = false;  // kObject: other names are errors
  std::vector<std::string_view> words;
  std::vector<Rule> options;
  std::vector<Field> fields;
  std::vector<BodyValue> neutral;

  static Rule Boolean();
  static Rule Integer(int64_t least, int64_t most = kUnlimited);
  static Rule Number(double low, double high);
  static Rule NumberAbove(double low, double high);
  static Rule String(int64_t least = 0, int64_t most = kUnlimited);
  static Rule OneOf(std::vector<std::string_view> words);
  static Rule List(Rule item, int64_t least, int64_t most = kUnlimited);
  static Rule Object(std::vector<Field> fields);
  static Rule ClosedObject(std::vector<Field> fields);
  static Rule TokenMap(double low, double high, int64_t most);
  static Rule AnyOf(std::vector<Rule> options);
  static Rule NoEffect();
  // `neutral` values as JSON texts.
  static Rule Unsupported(std::initializer_list<std::string_view> neutral = {});

  // "an integer from 1 to 16", for messages.
  std::string Describe() const;
};

// A field of an object. Null counts as absent, unless the field is required.
struct Field {
  std::string_view name;
  Rule rule;
  std::string_view about = "";  // one sentence for /openapi.json
  bool required = false;
  std::string_view same_as = "";  // of an alias: the field that it is another name of
  bool dropped = false;           // as if nobody knew it
};

// Names that no rule knows, by their paths: made fit for a header, at most kMost of them.
class UnknownNames {
 public:
  static constexpr size_t kMost = 32;
  void Add(std::string_view path);
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

// The first fault of `value`, which stands at `path`; adds the names that nobody knows.
std::optional<ApiError> CheckValue(const Rule& rule, const BodyValue& value,
                                   const std::string& path, UnknownNames& unknown);

// JSON Schema 2020-12 of the rule. `nullable`: null is allowed, too.
nlohmann::ordered_json SchemaOf(const Rule& rule, bool nullable = false);

}  // namespace halfbyte
