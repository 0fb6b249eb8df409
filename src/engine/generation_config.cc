#include "engine/generation_config.h"

namespace halfbyte {

Result<SamplingParams> ReadSamplingDefaults(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "generation_config.json";
  std::error_code error;  // an unreadable directory is for ReadJsonFile to report
  if (!std::filesystem::exists(path, error) && !error) return SamplingParams();
  HB_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  return WithSamplingDefaults({}, json, path.string());
}

Result<SamplingParams> WithSamplingDefaults(SamplingParams params, const Json& json,
                                            const std::string& source) {
  HB_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::Of(json, source));
  HB_ASSIGN_OR_RETURN(const auto temperature, config.Number("temperature"));
  HB_ASSIGN_OR_RETURN(const auto top_p, config.Number("top_p"));
  HB_ASSIGN_OR_RETURN(const auto top_k, config.Int("top_k"));
  HB_ASSIGN_OR_RETURN(const auto min_p, config.Number("min_p"));
  HB_ASSIGN_OR_RETURN(const auto do_sample, config.Bool("do_sample"));
  params.temperature = temperature.value_or(params.temperature);
  params.top_p = top_p.value_or(params.top_p);
  params.top_k = top_k.value_or(params.top_k);
  params.min_p = min_p.value_or(params.min_p);
  if (!do_sample.value_or(true)) params.temperature = 0;
  if (const Status valid = Validate(params); !valid) {
    return MakeError("{}: {}", source, valid.error().message);
  }
  return params;
}

}  // namespace halfbyte
