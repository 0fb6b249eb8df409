// generation_config.json: the sampling that a model's makers recommend.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "engine/sampler.h"

namespace halfbyte {

// temperature, top_p, top_k, min_p of DIR/generation_config.json; "do_sample": false means
// temperature 0. Without the file or a field: SamplingParams' own values. Errors name the field.
Result<SamplingParams> ReadSamplingDefaults(const std::filesystem::path& model_dir);
// `params` with what the fields of `json` say instead. `source` names it in errors.
Result<SamplingParams> WithSamplingDefaults(SamplingParams params, const Json& json,
                                            const std::string& source);

}  // namespace halfbyte
