#include "text/token_ids.h"

#include <string>

#include "base/json.h"

namespace halfbyte {
namespace {

Result<std::vector<int32_t>> ParseSequence(const Json& list, const std::string& source) {
  if (!list.is_array() || list.empty()) {
    return MakeError("{}: expected a list of token ids with at least one id, not {}", source,
                     list.is_array() ? "an empty list" : list.type_name());
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& value = list[i];
    if (!value.is_number_integer() || value.get<double>() < INT32_MIN ||
        value.get<double>() > INT32_MAX) {
      return MakeError("{}: element {} is {}, not a token id", source, i, value.dump());
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> ReadTokenSequences(const std::filesystem::path& path) {
  HB_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  std::vector<std::vector<int32_t>> sequences;
  if (json.is_array() && !json.empty() && json[0].is_array()) {
    for (size_t i = 0; i < json.size(); ++i) {
      HB_ASSIGN_OR_RETURN(auto ids,
                          ParseSequence(json[i], fmt::format("{}: sequence {}", path.string(), i)));
      sequences.push_back(std::move(ids));
    }
    return sequences;
  }
  HB_ASSIGN_OR_RETURN(auto ids, ParseSequence(json, path.string()));
  sequences.push_back(std::move(ids));
  return sequences;
}

Result<std::vector<int32_t>> ReadTokenIds(const std::filesystem::path& path) {
  HB_ASSIGN_OR_RETURN(auto sequences, ReadTokenSequences(path));
  if (sequences.size() != 1) {
    return MakeError("{}: {} sequences where one list of token ids is expected", path.string(),
                     sequences.size());
  }
  return std::move(sequences[0]);
}

}  // namespace halfbyte
