// Converts a DeepSeek-V4 checkpoint between BF16, FP8, MXFP4 and the two NVFP4 conventions; what
// changes and what is copied is said in plan.h. docs/convert.md is the user's page.
#pragma once

#include <filesystem>
#include <functional>

#include "base/result.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/convert/report.h"

namespace halfbyte {

struct ConvertOptions {
  TargetFormat format = TargetFormat::kModelOptNvfp4;
  ConvertScope scope = ConvertScope::kExperts;
  bool four_over_six = false;  // nvfp4.md §5, where values are quantized
  bool overwrite = false;      // the target may hold something else
  int threads = 1;

  // For tests of an interruption: asked after each finished shard; true ends the run with an error.
  std::function<bool(const ShardReport&)> stop_after;
};

// Writes a complete checkpoint into `target`, created if absent. Shards keep their file names and
// appear under them when complete; index, config.json, hf_quant_config.json and the other files
// follow at the end. After an interruption or a full disk, the same call continues where it
// stopped. Memory: `threads` times the largest converted matrix, besides headers and reports.
// Errors leave no half-written file under a final name.
Result<ConversionReport> ConvertCheckpoint(const std::filesystem::path& source,
                                           const std::filesystem::path& target,
                                           const ConvertOptions& options);

}  // namespace halfbyte
