#include "text/model_defaults.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "text/encoder_file.h"
#include "text/sha256.h"

namespace halfbyte {
namespace {

Status RefuseUnknownFields(const JsonObject& object,
                           std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.json().items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return MakeError("{} is not known; allowed are {}", object.Describe(key),
                       fmt::join(known, ", "));
    }
  }
  return {};
}

Result<EffortProfile> ParseProfile(const JsonObject& object) {
  HB_ASSIGN_OR_RETURN(const auto name, object.String("effort_profile"));
  if (!name || *name == "preview") return EffortProfile::kPreview;
  if (*name == "official") return EffortProfile::kOfficial;
  return MakeError("{} is \"{}\"; allowed are preview, official", object.Describe("effort_profile"),
                   *name);
}

Result<EffortTexts> ReadEffortTexts(const JsonObject& object) {
  EffortTexts texts;
  HB_ASSIGN_OR_RETURN(texts.profile, ParseProfile(object));
  HB_ASSIGN_OR_RETURN(const auto wording, object.Object("effort_texts"));
  if (!wording) return texts;
  HB_RETURN_IF_ERROR(RefuseUnknownFields(*wording, {"high", "max"}));
  HB_ASSIGN_OR_RETURN(texts.high, wording->String("high"));
  HB_ASSIGN_OR_RETURN(texts.max, wording->String("max"));
  if (texts.high && texts.profile == EffortProfile::kPreview) {
    return MakeError("{} would never be used: effort_profile \"preview\" adds nothing for high",
                     wording->Describe("high"));
  }
  return texts;
}

Result<SectionTexts> ReadSectionTexts(const JsonObject& object) {
  SectionTexts texts;
  HB_ASSIGN_OR_RETURN(const auto wording, object.Object("section_texts"));
  if (!wording) return texts;
  HB_RETURN_IF_ERROR(RefuseUnknownFields(*wording, {"tools", "response_format"}));
  HB_ASSIGN_OR_RETURN(texts.tools, wording->String("tools"));
  HB_ASSIGN_OR_RETURN(texts.response_format, wording->String("response_format"));
  return texts;
}

}  // namespace

Result<ModelDefaults> ParseModelDefaults(const Json& json, const std::string& source) {
  HB_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, source));
  HB_RETURN_IF_ERROR(
      RefuseUnknownFields(object, {"default_thinking", "default_reasoning_effort", "effort_profile",
                                   "effort_texts", "section_texts"}));
  ModelDefaults defaults;
  HB_ASSIGN_OR_RETURN(const auto thinking, object.Bool("default_thinking"));
  defaults.thinking = thinking.value_or(defaults.thinking);
  HB_ASSIGN_OR_RETURN(const auto effort, object.String("default_reasoning_effort"));
  if (effort) {
    auto parsed = ParseReasoningEffort(*effort);
    if (!parsed) {
      return MakeError("{}: {}", object.Describe("default_reasoning_effort"),
                       parsed.error().message);
    }
    defaults.reasoning_effort = *parsed;
  }
  HB_ASSIGN_OR_RETURN(defaults.wording.efforts, ReadEffortTexts(object));
  HB_ASSIGN_OR_RETURN(defaults.wording.sections, ReadSectionTexts(object));
  return defaults;
}

Result<ModelDefaults> ReadModelDefaults(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "halfbyte.json";
  ModelDefaults defaults;
  std::optional<EffortProfile> profile;
  std::error_code error;
  if (std::filesystem::exists(path, error) || error) {
    HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
    HB_ASSIGN_OR_RETURN(const Json json, ParseJson(text, path.string()));
    HB_ASSIGN_OR_RETURN(defaults, ParseModelDefaults(json, path.string()));
    HB_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, path.string()));
    if (object.Has("effort_profile")) profile = defaults.wording.efforts.profile;
    if (object.Has("effort_texts") || object.Has("section_texts")) {
      defaults.wording.efforts.source = path.string();
      defaults.wording.efforts.sha256 = Sha256(text);
      return defaults;
    }
  }
  HB_ASSIGN_OR_RETURN(auto wording, ReadEncoderFile(model_dir, profile));
  if (wording) defaults.wording = *std::move(wording);
  return defaults;
}

}  // namespace halfbyte
