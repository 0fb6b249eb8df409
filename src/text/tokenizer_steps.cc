#include "text/tokenizer_steps.h"

#include <algorithm>

#include "base/log.h"

namespace halfbyte {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kMostSteps = 64;

// The split that a ByteLevel pre-tokenizer with use_regex performs (GPT-2).
constexpr std::string_view kByteLevelRegex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Step {
  std::string_view type;
  std::string where;  // "post_processor.processors[1]"
  dom::element value;
};

tl::unexpected<Error> Unsupported(const std::string& source, const Step& step,
                                  std::string_view supported) {
  return MakeError("{}: field {}: type {} is not supported, only {}; {}", source, step.where,
                   Quote(step.type), supported, kEncodeElsewhere);
}

// Appends `value`, or what its Sequence holds under the name `list`.
Status AppendSteps(dom::element value, const std::string& source, const std::string& where,
                   std::string_view list, std::vector<Step>* steps) {
  std::string_view type;
  if (value["type"].get(type) != simdjson::SUCCESS) {
    return MakeError("{}: field {} must be an object with a \"type\"", source, where);
  }
  if (type != "Sequence") {
    if (steps->size() == kMostSteps) {
      return MakeError("{}: field {}: more than {} steps", source, where, kMostSteps);
    }
    steps->push_back({type, where, value});
    return {};
  }
  HB_ASSIGN_OR_RETURN(const JsonFields fields,
                      JsonFields::Of(value, source, where, {"type", list}));
  HB_ASSIGN_OR_RETURN(const auto parts, fields.Array(list));
  if (!parts) return MakeError("{} is missing", fields.Describe(list));
  size_t index = 0;
  for (const dom::element part : *parts) {
    const std::string place = fmt::format("{}[{}]", fields.Path(list), index++);
    HB_RETURN_IF_ERROR(AppendSteps(part, source, place, list, steps));
  }
  return {};
}

// The steps of a section; none if it is absent.
Result<std::vector<Step>> StepsOf(const JsonFields& top, std::string_view section,
                                  std::string_view list) {
  std::vector<Step> steps;
  if (const auto value = top.Get(section)) {
    HB_RETURN_IF_ERROR(AppendSteps(*value, top.source(), std::string(section), list, &steps));
  }
  return steps;
}

// ByteLevel in any of its three roles. `type` first, then options that change offsets only, but
// for add_prefix_space and use_regex of a pre-tokenizer.
Result<JsonFields> ByteLevelFields(const Step& step, const std::string& source) {
  return JsonFields::Of(step.value, source, step.where,
                        {"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

Result<SplitRule> ReadSplit(const Step& step, const std::string& source) {
  HB_ASSIGN_OR_RETURN(
      const JsonFields fields,
      JsonFields::Of(step.value, source, step.where, {"type", "pattern", "behavior", "invert"}));
  HB_ASSIGN_OR_RETURN(const auto behavior, fields.String("behavior"));
  HB_ASSIGN_OR_RETURN(const auto invert, fields.Bool("invert"));
  // Isolating the matches or what lies between them is the same.
  const bool covers_all = behavior == "Removed" && invert.value_or(false);
  if (behavior != "Isolated" && !covers_all) {
    return MakeError("{} is {}; only \"Isolated\" and, inverted, \"Removed\" are supported; {}",
                     fields.Describe("behavior"), Quote(behavior.value_or("")), kEncodeElsewhere);
  }
  const auto pattern = fields.Get("pattern");
  if (!pattern) return MakeError("{} is missing", fields.Describe("pattern"));
  HB_ASSIGN_OR_RETURN(
      const JsonFields kinds,
      JsonFields::Of(*pattern, source, fields.Path("pattern"), {"Regex", "String"}));
  HB_ASSIGN_OR_RETURN(const auto regex, kinds.String("Regex"));
  HB_ASSIGN_OR_RETURN(const auto literal, kinds.String("String"));
  const std::string text(regex ? *regex : literal.value_or(""));
  if ((regex && literal) || text.empty()) {
    return MakeError("{} must hold one non-empty \"Regex\" or \"String\"",
                     fields.Describe("pattern"));
  }
  return SplitRule{text, literal.has_value(), covers_all};
}

Result<SplitRule> ReadDigits(const Step& step, const std::string& source) {
  HB_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(step.value, source, step.where,
                                                              {"type", "individual_digits"}));
  HB_ASSIGN_OR_RETURN(const auto individual, fields.Bool("individual_digits"));
  return SplitRule{individual.value_or(false) ? R"(\p{N})" : R"(\p{N}+)"};
}

// The ids of a piece {"SpecialToken": {"id": NAME}}: "special_tokens" has {NAME: {"ids": [...]}}.
Result<std::vector<int32_t>> SpecialIds(const JsonFields& piece,
                                        const std::optional<dom::object>& special_tokens) {
  std::string_view name;
  dom::array listed;
  const auto token = piece.Get("SpecialToken");
  if (!token || (*token)["id"].get(name) != simdjson::SUCCESS || !special_tokens ||
      (*special_tokens)[name]["ids"].get(listed) != simdjson::SUCCESS) {
    return MakeError("{} is {}, which special_tokens beside the template gives no ids",
                     piece.Describe("SpecialToken.id"), Quote(name));
  }
  std::vector<int32_t> ids;
  for (const dom::element element : listed) {
    int64_t id = -1;
    if (element.get(id) != simdjson::SUCCESS || id < 0 || id > INT32_MAX) {
      return MakeError("{}: special_tokens gives token {} an id that is none", piece.source(),
                       Quote(name));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// "single" is the template for one text; "pair", for two, is nothing that we are asked for.
Result<SpecialTokens> ReadTemplate(const Step& step, const std::string& source) {
  HB_ASSIGN_OR_RETURN(
      const JsonFields fields,
      JsonFields::Of(step.value, source, step.where, {"type", "single", "pair", "special_tokens"}));
  HB_ASSIGN_OR_RETURN(const auto single, fields.Array("single"));
  HB_ASSIGN_OR_RETURN(const auto known, fields.Object("special_tokens"));
  if (!single) return MakeError("{} is missing", fields.Describe("single"));
  SpecialTokens tokens;
  int texts = 0;
  size_t index = 0;
  for (const dom::element piece : *single) {
    const std::string where = fmt::format("{}[{}]", fields.Path("single"), index++);
    std::string_view text;
    if (piece["Sequence"]["id"].get(text) == simdjson::SUCCESS && text == "A") {
      ++texts;
      continue;
    }
    HB_ASSIGN_OR_RETURN(const JsonFields kinds,
                        JsonFields::Of(piece, source, where, {"SpecialToken"}));
    HB_ASSIGN_OR_RETURN(const auto ids, SpecialIds(kinds, known));
    auto& side = texts == 0 ? tokens.before : tokens.after;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (texts != 1) {
    return MakeError("{} must hold the piece {{\"Sequence\": {{\"id\": \"A\"}}}} once",
                     fields.Describe("single"));
  }
  return tokens;
}

}  // namespace

std::string Quote(std::string_view text) {
  // Cut between characters: error messages stay valid UTF-8.
  size_t end = std::min<size_t>(text.size(), 60);
  while (end < text.size() && end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("\"{}{}\"", text.substr(0, end), end < text.size() ? "..." : "");
}

Status RequireBool(const JsonFields& fields, std::string_view key, bool neutral) {
  HB_ASSIGN_OR_RETURN(const auto value, fields.Bool(key));
  if (value.value_or(neutral) == neutral) return {};
  return MakeError("{} is {}, which is not supported; {}", fields.Describe(key), *value,
                   kEncodeElsewhere);
}

Result<UnicodeForm> ReadNormalizer(const JsonFields& top) {
  HB_ASSIGN_OR_RETURN(const auto steps, StepsOf(top, "normalizer", "normalizers"));
  UnicodeForm form = UnicodeForm::kAsIs;
  for (const Step& step : steps) {
    // NFKC text is in NFC, too; and what the stronger form leaves is the same in either order.
    if (step.type == "NFKC") {
      form = UnicodeForm::kNfkc;
    } else if (step.type == "NFC") {
      form = std::max(form, UnicodeForm::kNfc);
    } else {
      return Unsupported(top.source(), step, "NFC and NFKC");
    }
  }
  return form;
}

Result<std::vector<SplitRule>> ReadPreTokenizer(const JsonFields& top) {
  const std::string& source = top.source();
  HB_ASSIGN_OR_RETURN(const auto steps, StepsOf(top, "pre_tokenizer", "pretokenizers"));
  std::vector<SplitRule> splits;
  for (const Step& step : steps) {
    const bool last = &step == &steps.back();
    if (step.type == "Split") {
      HB_ASSIGN_OR_RETURN(splits.emplace_back(), ReadSplit(step, source));
    } else if (step.type == "Digits") {
      HB_ASSIGN_OR_RETURN(splits.emplace_back(), ReadDigits(step, source));
    } else if (step.type == "ByteLevel" && last) {
      HB_ASSIGN_OR_RETURN(const JsonFields fields, ByteLevelFields(step, source));
      HB_RETURN_IF_ERROR(RequireBool(fields, "add_prefix_space", false));
      HB_ASSIGN_OR_RETURN(const auto use_regex, fields.Bool("use_regex"));
      if (use_regex.value_or(true)) splits.push_back({std::string(kByteLevelRegex)});
      return splits;
    } else {
      return Unsupported(source, step, "Split and Digits, and ByteLevel at the end");
    }
  }
  return MakeError("{} must end with ByteLevel; halfbyte knows byte-level vocabularies only",
                   top.Describe("pre_tokenizer"));
}

Result<SpecialTokens> ReadPostProcessor(const JsonFields& top) {
  const std::string& source = top.source();
  HB_ASSIGN_OR_RETURN(const auto steps, StepsOf(top, "post_processor", "processors"));
  std::optional<SpecialTokens> tokens;
  for (const Step& step : steps) {
    if (step.type == "ByteLevel") {
      HB_RETURN_IF_ERROR(ByteLevelFields(step, source));
    } else if (step.type == "TemplateProcessing" && !tokens) {
      HB_ASSIGN_OR_RETURN(tokens, ReadTemplate(step, source));
    } else {
      return Unsupported(source, step, "ByteLevel and one TemplateProcessing");
    }
  }
  return tokens.value_or(SpecialTokens());
}

Status CheckDecoder(const JsonFields& top) {
  HB_ASSIGN_OR_RETURN(const auto steps, StepsOf(top, "decoder", "decoders"));
  for (const Step& step : steps) {
    const bool first = &step == &steps.front();
    if (first && step.type == "ByteLevel") {
      HB_RETURN_IF_ERROR(ByteLevelFields(step, top.source()));
    } else if (first || step.type != "Fuse") {  // what ByteLevel leaves is in one piece already
      return Unsupported(top.source(), step, "ByteLevel, then Fuse");
    }
  }
  if (!steps.empty()) return {};
  return MakeError("{} must be ByteLevel; without it the tokens of a text are joined by spaces",
                   top.Describe("decoder"));
}

Status CheckTruncationAndPadding(const JsonFields& top) {
  HB_ASSIGN_OR_RETURN(const auto truncation, top.Object("truncation"));
  HB_ASSIGN_OR_RETURN(const auto padding, top.Object("padding"));
  if (!truncation && !padding) return {};
  spdlog::warn("{}: {} not applied: texts are neither cut nor filled up", top.source(),
               !padding      ? "truncation is"
               : !truncation ? "padding is"
                             : "truncation and padding are");
  return {};
}

}  // namespace halfbyte
