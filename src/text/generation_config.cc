#include "text/generation_config.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "text/stop_matcher.h"

namespace halfbyte {
namespace {

// The other fields of GenerationConfig in transformers 5.24 (generation/configuration_utils.py),
// with the values that ask for nothing; null always does.
constexpr std::pair<std::string_view, std::string_view> kUnused[] = {
    {"begin_suppress_tokens", "[]"},
    {"constraints", "[]"},
    {"dola_layers", "null"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"encoder_repetition_penalty", "1.0"},
    {"epsilon_cutoff", "0.0"},
    {"eta_cutoff", "0.0"},
    {"exponential_decay_length_penalty", "null"},
    {"force_words_ids", "[]"},
    {"forced_bos_token_id", "null"},
    {"forced_eos_token_id", "null"},
    {"guidance_scale", "1.0"},
    {"max_time", "null"},
    {"min_length", "0"},
    {"no_repeat_ngram_size", "0"},
    {"num_beams", "1"},
    {"num_return_sequences", "1"},
    {"penalty_alpha", "0.0"},
    {"remove_invalid_values", "false"},
    {"renormalize_logits", "false"},
    {"sequence_bias", "[]"},
    {"token_healing", "false"},
    {"top_h", "null"},
    {"typical_p", "1.0"},
    {"watermarking_config", "null"},
};

// Whatever they say, they change no text of ours: notes, what beams alone would use (num_beams is
// above), caches, outputs and speculation of transformers.
constexpr std::string_view kWithoutEffect[] = {
    "_commit_hash",
    "_from_model_config",
    "_name_or_path",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "decoder_start_token_id",
    "disable_compile",
    "diversity_penalty",
    "early_stopping",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "return_dict_in_generate",
    "return_legacy_cache",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
};

constexpr std::string_view kUsed[] = {
    "bad_words_ids",
    "do_sample",
    "frequency_penalty",
    "max_length",
    "max_new_tokens",
    "min_new_tokens",
    "min_p",
    "presence_penalty",
    "stop_strings",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
};

bool IsUnused(const std::string& name, const Json& value) {
  if (value.is_null() || std::ranges::find(kWithoutEffect, name) != std::end(kWithoutEffect) ||
      std::ranges::find(kUsed, name) != std::end(kUsed)) {
    return false;
  }
  for (const auto& [field, neutral] : kUnused) {
    if (field == name) return !(value == Json::parse(neutral));  // also of NaN
  }
  return true;
}

Status ReadLeast(const JsonObject& config, std::string_view key, int64_t least,
                 std::optional<int64_t>* to) {
  HB_ASSIGN_OR_RETURN(const auto value, config.Int(key));
  if (!value) return {};
  if (*value < least) {
    return MakeError("{} is {}; allowed is {} and more", config.Describe(key), *value, least);
  }
  *to = *value;
  return {};
}

Result<int32_t> TokenId(const Json& value, const JsonObject& config, std::string_view key) {
  if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
    return MakeError("{} holds {}, which is no token id", config.Describe(key), value.dump());
  }
  return value.get<int32_t>();
}

// Also the words of one token among bad_words_ids; says whether there are longer ones.
Result<bool> ReadSuppressed(const JsonObject& config, GenerationDefaults* defaults) {
  HB_ASSIGN_OR_RETURN(const auto tokens, config.Array("suppress_tokens"));
  HB_ASSIGN_OR_RETURN(const auto words, config.Array("bad_words_ids"));
  std::vector<int32_t> ids;
  for (const Json& token : tokens ? **tokens : Json::array()) {
    HB_ASSIGN_OR_RETURN(ids.emplace_back(), TokenId(token, config, "suppress_tokens"));
  }
  bool longer = false;
  for (const Json& word : words ? **words : Json::array()) {
    if (!word.is_array() || word.empty()) {
      return MakeError("{} must be a list of lists of token ids", config.Describe("bad_words_ids"));
    }
    longer = longer || word.size() > 1;
    for (const Json& token : word) {
      HB_ASSIGN_OR_RETURN(const int32_t id, TokenId(token, config, "bad_words_ids"));
      if (word.size() == 1) ids.push_back(id);
    }
  }
  if (tokens || words) defaults->suppress_tokens = std::move(ids);
  return longer;
}

Status ReadStops(const JsonObject& config, GenerationDefaults* defaults) {
  const auto field = config.json().find("stop_strings");
  if (field == config.json().end() || field->is_null()) return {};
  const Json list = field->is_string() ? Json::array({*field}) : *field;
  const auto wrong = [](const Json& stop) {
    return !stop.is_string() || stop.get_ref<const std::string&>().empty() ||
           stop.get_ref<const std::string&>().size() > StopMatcher::kMostBytes;
  };
  if (!list.is_array() || list.size() > StopMatcher::kMostStrings ||
      std::any_of(list.begin(), list.end(), wrong)) {
    return MakeError("{} must be a text or a list of at most {} texts, each of 1 to {} bytes",
                     config.Describe("stop_strings"), StopMatcher::kMostStrings,
                     StopMatcher::kMostBytes);
  }
  defaults->stop_strings = list.get<std::vector<std::string>>();
  return {};
}

Status ReadSampling(const JsonObject& config, const std::string& source, SamplingParams* params) {
  for (const auto& [key, value] :
       {std::pair("temperature", &params->temperature), std::pair("top_p", &params->top_p),
        std::pair("min_p", &params->min_p),
        std::pair("repetition_penalty", &params->repetition_penalty),
        std::pair("frequency_penalty", &params->frequency_penalty),
        std::pair("presence_penalty", &params->presence_penalty)}) {
    HB_ASSIGN_OR_RETURN(const auto number, config.Number(key));
    *value = number.value_or(*value);
  }
  HB_ASSIGN_OR_RETURN(const auto top_k, config.Int("top_k"));
  params->top_k = top_k.value_or(params->top_k);
  HB_ASSIGN_OR_RETURN(const auto do_sample, config.Bool("do_sample"));
  if (!do_sample.value_or(true)) params->temperature = 0;
  if (const Status valid = Validate(*params); !valid) {
    return MakeError("{}: {}", source, valid.error().message);
  }
  return {};
}

}  // namespace

int64_t GenerationDefaults::MaxTokens(int64_t prompt, int64_t otherwise) const {
  if (max_new_tokens) return *max_new_tokens;
  return max_length ? std::max<int64_t>(1, *max_length - prompt) : otherwise;
}

Result<GenerationDefaults> ReadGenerationDefaults(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "generation_config.json";
  std::error_code error;  // an unreadable directory is for ReadJsonFile to report
  if (!std::filesystem::exists(path, error) && !error) return GenerationDefaults();
  HB_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path));
  if (json.is_object()) json.erase("eos_token_id");
  return WithGenerationDefaults({}, json, path.string());
}

Result<GenerationDefaults> WithGenerationDefaults(GenerationDefaults defaults, const Json& json,
                                                  const std::string& source) {
  HB_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::Of(json, source));
  HB_RETURN_IF_ERROR(ReadSampling(config, source, &defaults.sampling));
  HB_RETURN_IF_ERROR(ReadLeast(config, "max_new_tokens", 1, &defaults.max_new_tokens));
  HB_RETURN_IF_ERROR(ReadLeast(config, "max_length", 1, &defaults.max_length));
  std::optional<int64_t> min_new_tokens;
  HB_RETURN_IF_ERROR(ReadLeast(config, "min_new_tokens", 0, &min_new_tokens));
  defaults.min_new_tokens = min_new_tokens.value_or(defaults.min_new_tokens);
  HB_RETURN_IF_ERROR(ReadStops(config, &defaults));
  HB_ASSIGN_OR_RETURN(const bool longer_words, ReadSuppressed(config, &defaults));

  std::vector<std::string> unused;
  for (const auto& [name, value] : json.items()) {
    if (IsUnused(name, value)) unused.push_back(name);
  }
  if (longer_words) unused.push_back("bad_words_ids of several tokens");
  if (!unused.empty()) {
    spdlog::warn("{}: not used, though it may change texts: {}", source, fmt::join(unused, ", "));
  }
  return defaults;
}

}  // namespace halfbyte
