// SchemaOf of field_rule.h: rules as JSON Schema 2020-12.
#include <nlohmann/json.hpp>
#include <utility>

#include "openai/field_rule.h"

namespace halfbyte {
namespace {

using Schema = nlohmann::ordered_json;

void AddBounds(Schema& schema, const Rule& rule, const char* least, const char* most) {
  if (rule.least > 0) schema[least] = rule.least;
  if (rule.most != Rule::kUnlimited) schema[most] = rule.most;
}

Schema IntegerSchema(const Rule& rule) {
  return {{"type", "integer"}, {"minimum", rule.least}, {"maximum", rule.most}};
}

Schema NumberSchema(const Rule& rule) {
  return {{"type", "number"},
          {rule.above_low ? "exclusiveMinimum" : "minimum", rule.low},
          {"maximum", rule.high}};
}

Schema StringSchema(const Rule& rule) {
  Schema schema = {{"type", "string"}};
  if (!rule.words.empty()) {
    schema["enum"] = rule.words;
  } else {
    AddBounds(schema, rule, "minLength", "maxLength");
  }
  return schema;
}

Schema ObjectSchema(const Rule& rule) {
  Schema schema = {{"type", "object"}, {"properties", Schema::object()}};
  for (const Field& field : rule.fields) {
    Schema member = SchemaOf(field.rule, /*nullable=*/!field.required);
    if (!field.about.empty()) member["description"] = field.about;
    if (field.required) schema["required"].push_back(field.name);
    schema["properties"][std::string(field.name)] = std::move(member);
  }
  if (rule.closed) schema["additionalProperties"] = false;
  return schema;
}

Schema TokenMapSchema(const Rule& rule) {
  return {
      {"type", "object"},
      {"propertyNames", {{"pattern", "^(0|[1-9][0-9]{0,9})$"}}},
      {"additionalProperties", {{"type", "number"}, {"minimum", rule.low}, {"maximum", rule.high}}},
      {"maxProperties", rule.most}};
}

Schema UnsupportedSchema(const Rule& rule) {
  Schema schema = {{"enum", Schema::array({nullptr})}, {"description", "Not supported"}};
  for (const BodyValue& value : rule.neutral) schema["enum"].push_back(Schema(value));
  return schema;
}

Schema Unnullable(const Rule& rule) {
  switch (rule.kind) {
    case Rule::Kind::kBoolean:
      return {{"type", "boolean"}};
    case Rule::Kind::kInteger:
      return IntegerSchema(rule);
    case Rule::Kind::kNumber:
      return NumberSchema(rule);
    case Rule::Kind::kString:
      return StringSchema(rule);
    case Rule::Kind::kList: {
      Schema schema = {{"type", "array"}, {"items", SchemaOf(rule.options[0])}};
      AddBounds(schema, rule, "minItems", "maxItems");
      return schema;
    }
    case Rule::Kind::kObject:
      return ObjectSchema(rule);
    case Rule::Kind::kTokenMap:
      return TokenMapSchema(rule);
    case Rule::Kind::kAnyOf: {
      Schema options = Schema::array();
      for (const Rule& option : rule.options) options.push_back(SchemaOf(option));
      return {{"anyOf", std::move(options)}};
    }
    case Rule::Kind::kNoEffect:
      return Schema::object();
    case Rule::Kind::kUnsupported:
      return UnsupportedSchema(rule);
  }
  return Schema::object();
}

}  // namespace

Schema SchemaOf(const Rule& rule, bool nullable) {
  Schema schema = Unnullable(rule);
  if (!nullable) return schema;
  if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
  } else if (schema.contains("enum") && rule.kind == Rule::Kind::kString) {
    schema["type"] = {"string", "null"};
    schema["enum"].push_back(nullptr);
  } else if (schema.contains("type")) {
    schema["type"] = Schema::array({schema["type"], "null"});
  }
  return schema;
}

}  // namespace halfbyte
