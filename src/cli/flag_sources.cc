#include "cli/flag_sources.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/nearest_name.h"

namespace halfbyte {
namespace {

// "max-model-len"; empty for positionals and what cannot be configured.
std::string NameOf(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  if (names.empty() || !option.get_configurable()) return "";
  return names.front();
}

std::string VariableOf(const std::string& name) {
  std::string variable = "HALFBYTE_";
  for (const char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

// `source` says in errors where the values come from.
Status Take(CLI::Option& option, const std::vector<std::string>& values,
            const std::string& source) {
  try {
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::Error& error) {
    return MakeError("{}: {}", source, error.what());
  }
  return {};
}

Result<std::string> TextOf(const toml::node& node, const std::string& source) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<int64_t>()) return std::to_string(*number);
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
  return MakeError("{}: a string, a number, true, false or a list of these is expected", source);
}

Result<toml::table> ReadToml(const std::filesystem::path& file) {
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, size_t{1} << 20));
  try {
    return toml::parse(text, file.string());
  } catch (const toml::parse_error& error) {
    return MakeError("{}: line {}: {}", file.string(), error.source().begin.line,
                     error.description());
  }
}

Status FillFromFile(const std::vector<std::pair<std::string, CLI::Option*>>& flags,
                    const std::filesystem::path& file) {
  HB_ASSIGN_OR_RETURN(const toml::table table, ReadToml(file));
  std::vector<std::string> names;
  for (const auto& [name, option] : flags) names.push_back(name);
  for (const auto& [key, node] : table) {
    std::string name(key.str());
    std::ranges::replace(name, '_', '-');
    const std::string source = fmt::format("{}: {}", file.string(), std::string_view(key.str()));
    const auto flag = std::ranges::find(flags, name, &std::pair<std::string, CLI::Option*>::first);
    if (flag == flags.end()) {
      const auto nearest = NearestName(name, names);
      return MakeError("{}: there is no such flag{}", source,
                       nearest ? fmt::format(" (did you mean {}?)", *nearest) : "");
    }
    if (flag->second->count() > 0) continue;  // said by somebody who counts more
    std::vector<std::string> values;
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& element : *list) {
        HB_ASSIGN_OR_RETURN(values.emplace_back(), TextOf(element, source));
      }
    } else {
      HB_ASSIGN_OR_RETURN(values.emplace_back(), TextOf(node, source));
    }
    HB_RETURN_IF_ERROR(Take(*flag->second, values, source));
  }
  return {};
}

// A value as the type that the flag says it has.
Json Typed(const std::string& type, const std::string& text) {
  if (type.starts_with("TEXT") || type.empty()) return text;
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

Json ValueOf(const CLI::Option& option) {
  const bool is_flag = option.get_expected_max() == 0 || option.get_type_size_max() == 0;
  const std::string type = is_flag ? "BOOLEAN" : option.get_type_name();
  const bool is_list = option.get_items_expected_max() > 1;
  std::vector<std::string> texts = option.results();
  if (texts.empty() && !option.get_default_str().empty()) texts = {option.get_default_str()};
  if (!is_list) return texts.empty() ? Json(nullptr) : Typed(type, texts.back());
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(Typed(type, text));
  return list;
}

}  // namespace

Status FillFlags(CLI::App& command, const std::optional<std::filesystem::path>& file) {
  std::vector<std::pair<std::string, CLI::Option*>> flags;
  for (CLI::Option* option : command.get_options()) {
    if (const std::string name = NameOf(*option); !name.empty()) flags.emplace_back(name, option);
  }
  for (const auto& [name, option] : flags) {
    const std::string variable = VariableOf(name);
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || option->count() > 0) continue;
    HB_RETURN_IF_ERROR(Take(*option, {value}, variable));
  }
  return file ? FillFromFile(flags, *file) : Status();
}

Json FlagValues(const CLI::App& command, const std::vector<std::string>& secret) {
  Json values = Json::object();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = NameOf(*option);
    if (name.empty()) continue;
    const bool hidden = std::ranges::find(secret, name) != secret.end();
    values[name] = hidden ? Json(option->count() > 0 ? "set" : "not set") : ValueOf(*option);
  }
  return values;
}

}  // namespace halfbyte
