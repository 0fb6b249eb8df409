#include "text/encoder_file.h"

#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "text/python_literals.h"
#include "text/sha256.h"

namespace halfbyte {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr char kTable[] = "REASONING_EFFORT_PROMPTS";
constexpr char kMaxText[] = "REASONING_EFFORT_MAX";
constexpr char kToolsSection[] = "TOOLS_TEMPLATE";
constexpr char kFormatSection[] = "response_format_template";

std::optional<std::string> TextOf(const PythonLiterals& literals, const char* name) {
  const auto text = literals.strings.find(name);
  return text == literals.strings.end() ? std::nullopt : std::optional(text->second);
}

Result<EffortTexts> OfTable(const std::map<std::string, std::string>& table) {
  const bool known =
      table.size() == 3 && table.contains("low") && table.contains("high") && table.contains("max");
  if (!known || !table.at("low").empty()) {
    return MakeError(
        "{} is not a table of low (empty), high and max, so it is of a release that is not known "
        "here; put effort_profile and effort_texts into halfbyte.json",
        kTable);
  }
  return EffortTexts{
      .profile = EffortProfile::kOfficial, .high = table.at("high"), .max = table.at("max")};
}

Result<EffortTexts> TextsOf(const PythonLiterals& literals) {
  if (const auto table = literals.tables.find(kTable); table != literals.tables.end()) {
    return OfTable(table->second);
  }
  return EffortTexts{.max = TextOf(literals, kMaxText)};
}

// The same texts under another profile.
void ChangeProfile(EffortTexts& texts, EffortProfile profile) {
  if (texts.profile == profile) return;
  texts.profile = profile;
  if (profile == EffortProfile::kPreview) {
    texts.max = std::exchange(texts.high, std::nullopt);
  } else {
    texts.high = std::exchange(texts.max, std::nullopt);
  }
}

}  // namespace

Result<std::optional<ChatWording>> ReadEncoderFile(const std::filesystem::path& model_dir,
                                                   std::optional<EffortProfile> profile) {
  const std::filesystem::path path = model_dir / kEncoderFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::nullopt;
  HB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMostBytes));
  HB_ASSIGN_OR_RETURN(const PythonLiterals literals, ReadPythonLiterals(text, path.string()));
  auto texts = TextsOf(literals);
  if (!texts) return MakeError("{}: {}", path.string(), texts.error().message);
  if (profile) ChangeProfile(*texts, *profile);
  texts->source = path.string();
  texts->sha256 = Sha256(text);
  return ChatWording{.efforts = *std::move(texts),
                     .sections = {.tools = TextOf(literals, kToolsSection),
                                  .response_format = TextOf(literals, kFormatSection)}};
}

}  // namespace halfbyte
