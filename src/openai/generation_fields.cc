#include "openai/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <utility>

namespace halfbyte {
namespace {

uint64_t DrawSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

ApiResult<std::vector<LogitBias>> ReadBiases(const BodyFields& body, int64_t vocabulary) {
  std::vector<LogitBias> biases;
  const BodyValue* map = body.Find("logit_bias");
  if (map == nullptr) return biases;
  for (const auto& [name, bias] : map->items()) {
    int64_t id = vocabulary;  // what does not fit 64 bits is outside, too
    std::from_chars(name.data(), name.data() + name.size(), id);
    if (id >= vocabulary) {
      return tl::unexpected(
          FieldError("invalid_value", JoinPath("logit_bias", name),
                     fmt::format("logit_bias names token id {}; the model has ids 0 to {}", name,
                                 vocabulary - 1)));
    }
    biases.push_back({static_cast<int32_t>(id), bias.get<double>()});
  }
  return biases;
}

SamplingParams ReadSampling(const BodyFields& body, const ModelInfo& model,
                            const ApiOptions& options) {
  SamplingParams sampling = model.defaults.sampling;
  sampling.temperature = body.Number("temperature").value_or(sampling.temperature);
  sampling.top_p = body.Number("top_p").value_or(sampling.top_p);
  sampling.top_k = body.Int("top_k").value_or(sampling.top_k);
  sampling.min_p = body.Number("min_p").value_or(sampling.min_p);
  sampling.repetition_penalty =
      body.Number("repetition_penalty").value_or(sampling.repetition_penalty);
  sampling.frequency_penalty =
      body.Number("frequency_penalty").value_or(sampling.frequency_penalty);
  sampling.presence_penalty = body.Number("presence_penalty").value_or(sampling.presence_penalty);
  if (const auto seed = body.Int("seed")) {
    sampling.seed = static_cast<uint64_t>(*seed);
  } else {
    sampling.seed = options.seed ? *options.seed : DrawSeed();
  }
  return sampling;
}

std::vector<std::string> ReadStops(const BodyFields& body, const ModelInfo& model) {
  const BodyValue* stop = body.Find("stop");
  if (stop == nullptr) return model.defaults.stop_strings;
  if (stop->is_string()) return {stop->get<std::string>()};
  return stop->get<std::vector<std::string>>();
}

struct Limit {
  const char* name = "max_tokens";
  std::optional<int64_t> value;
};

ApiResult<Limit> ReadMaxTokens(const BodyFields& body) {
  const auto old_name = body.Int("max_tokens");
  const auto new_name = body.Int("max_completion_tokens");
  if (old_name && new_name && *old_name != *new_name) {
    return tl::unexpected(FieldError(
        "invalid_value", "max_completion_tokens",
        fmt::format("max_completion_tokens is {}, but max_tokens is {}; keep one of them",
                    *new_name, *old_name)));
  }
  if (new_name && !old_name) return Limit{"max_completion_tokens", new_name};
  return Limit{"max_tokens", old_name};
}

}  // namespace

ApiResult<std::string> ReadModelName(const BodyFields& body, const ModelInfo& model) {
  const auto name = body.String("model");
  if (!name) return model.served_names.front();
  if (std::ranges::find(model.served_names, *name) != model.served_names.end()) return *name;
  return tl::unexpected(ModelNotFound(model, *name));
}

ApiResult<Request> ReadRequest(const BodyFields& body, const ModelInfo& model,
                               const ApiOptions& options) {
  Request request;
  request.n = static_cast<int32_t>(body.Int("n").value_or(1));
  request.sampling = ReadSampling(body, model, options);
  auto biases = ReadBiases(body, model.vocabulary);
  if (!biases) return tl::unexpected(std::move(biases.error()));
  request.sampling.logit_bias = *std::move(biases);
  request.stop.strings = ReadStops(body, model);
  request.masked_ids = model.defaults.suppress_tokens;
  request.stop.include_string = body.Bool("include_stop_str_in_output").value_or(false);
  request.stop.ignore_eos = body.Bool("ignore_eos").value_or(false);
  if (const BodyValue* ids = body.Find("stop_token_ids"); ids != nullptr) {
    if (auto fault = CheckIds(*ids, "stop_token_ids", model.vocabulary)) {
      return tl::unexpected(*std::move(fault));
    }
    request.stop.token_ids = IdsOf(*ids);
  }
  request.cache_salt = body.String("cache_salt").value_or("");
  return request;
}

ApiResult<AnswerForm> ReadForm(const BodyFields& body, const ApiOptions& options) {
  AnswerForm form;
  form.n = static_cast<int32_t>(body.Int("n").value_or(1));
  form.stream = body.Bool("stream").value_or(false);
  form.return_token_ids = body.Bool("return_token_ids").value_or(false);
  form.include_usage = options.force_include_usage;
  const BodyValue* stream_options = body.Find("stream_options");
  if (stream_options == nullptr) return form;
  if (!form.stream) {
    return tl::unexpected(
        FieldError("invalid_value", "stream_options",
                   "stream_options is there, but stream is not true; leave it out or set stream"));
  }
  const BodyFields fields(*stream_options);
  form.include_usage = form.include_usage || fields.Bool("include_usage").value_or(false);
  form.continuous_usage =
      form.include_usage && fields.Bool("continuous_usage_stats").value_or(false);
  return form;
}

ApiResult<Lengths> ReadLengths(const BodyFields& body, const ModelInfo& model,
                               const ApiOptions& options, int64_t prompt,
                               const std::string& prompt_path, int64_t fallback) {
  const auto limit = ReadMaxTokens(body);
  if (!limit) return tl::unexpected(limit.error());
  const bool echo = body.Bool("echo").value_or(false);
  if (limit->value == 0 && !echo) {
    return tl::unexpected(
        FieldError("invalid_value", limit->name,
                   fmt::format("{} is 0; it must be at least 1, or 0 with echo", limit->name)));
  }
  const int64_t left = model.max_model_len - prompt;
  if (left < 0 || (left == 0 && limit->value != 0)) {
    return tl::unexpected(FieldError(
        "context_length_exceeded", prompt_path,
        fmt::format("{} has {} tokens, which leaves no room in the model's context of {}; "
                    "shorten it",
                    prompt_path, prompt, model.max_model_len)));
  }
  Lengths lengths{.max_tokens = limit->value.value_or(
                      std::min(model.defaults.MaxTokens(prompt, fallback), left))};
  if (lengths.max_tokens > left) {
    if (!options.clamp_max_tokens) {
      return tl::unexpected(FieldError(
          "context_length_exceeded", limit->name,
          fmt::format("{} is {}, but {} prompt tokens leave {} of the model's context of "
                      "{}; ask for fewer or shorten the prompt",
                      limit->name, lengths.max_tokens, prompt, left, model.max_model_len)));
    }
    lengths.max_tokens = left;
    lengths.clamped = true;
  }
  lengths.min_tokens =
      body.Int("min_tokens").value_or(std::min(model.defaults.min_new_tokens, lengths.max_tokens));
  if (lengths.min_tokens > lengths.max_tokens) {
    return tl::unexpected(
        FieldError("invalid_value", "min_tokens",
                   fmt::format("min_tokens is {}; it must be at most max_tokens, which is {}",
                               lengths.min_tokens, lengths.max_tokens)));
  }
  return lengths;
}

ApiError TooLong(const std::string& path, int64_t most_ids) {
  return FieldError("context_length_exceeded", path,
                    fmt::format("{} has more than {} tokens, which leaves no room in the model's "
                                "context; shorten it",
                                path, most_ids));
}

std::optional<ApiError> CheckIds(const BodyValue& ids, const std::string& path,
                                 int64_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = AsInteger(ids[i]).value();
    if (id < vocabulary) continue;
    return FieldError("invalid_value", JoinPath(path, i),
                      fmt::format("{} is {}; the model has token ids 0 to {}", JoinPath(path, i),
                                  id, vocabulary - 1));
  }
  return std::nullopt;
}

std::vector<int32_t> IdsOf(const BodyValue& ids) {
  std::vector<int32_t> out;
  out.reserve(ids.size());
  for (const BodyValue& id : ids) out.push_back(static_cast<int32_t>(AsInteger(id).value()));
  return out;
}

ApiResult<void> ReadCommonFields(const BodyFields& body, const ModelInfo& model,
                                 const ApiOptions& options, GenerationCall& call) {
  auto name = ReadModelName(body, model);
  if (!name) return tl::unexpected(std::move(name.error()));
  auto form = ReadForm(body, options);
  if (!form) return tl::unexpected(std::move(form.error()));
  call.model = *std::move(name);
  call.form = *std::move(form);
  call.seed_drawn = !body.Has("seed") && !options.seed;
  return {};
}

}  // namespace halfbyte
