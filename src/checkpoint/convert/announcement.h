// The files that say what the result holds: index, config.json with its quantization section, and
// hf_quant_config.json (checkpoints.md §2.1, §2.2, §3). What they claim is derived from the plan,
// module by module; patterns never name something that is not there.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/convert/plan.h"

namespace halfbyte {

// model.safetensors.index.json: which shard holds which tensor; total_size is the bytes of all
// tensors.
Json MakeIndex(const ConversionPlan& plan);

// `config` is the source's config.json. Everything but what concerns quantization is kept.
Json MakeConfig(const ConversionPlan& plan, Json config);

// hf_quant_config.json of an nvfp4 result; `config` as from MakeConfig.
Json MakeHfQuantConfig(const Json& config);

}  // namespace halfbyte
