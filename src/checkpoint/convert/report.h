// What a conversion did to each matrix, as text, as JSON, and as it is kept in the state file of an
// interrupted run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/convert/plan.h"
#include "numerics/error_stats.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {

// A 32-block of MXFP4 too far below the largest one for a lossless NVFP4 scale (nvfp4.md §4.1).
struct RequantizedBlock {
  int64_t row = 0;
  int64_t block = 0;  // of 32, along the columns
};

struct MatrixReport {
  std::string name;  // of the result's tensor with the elements
  ConvertAction action = ConvertAction::kQuantize;
  StoredFormat from = StoredFormat::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t source_bytes = 0;
  int64_t bytes = 0;

  // The result, decoded as a reader of the file would, against the decoded source.
  ErrorStats error;
  int64_t differing = 0;  // elements that decode to another number

  // NVFP4 results only.
  float global_scale = 0;         // multiplier, as a reader of the result gets it
  bool same_global_scale = true;  // kRewrap: equal to the source's multiplier in every bit
  Nvfp4BlockStats blocks;         // kQuantize
  std::vector<RequantizedBlock> requantized;  // kLossless
};

struct ShardReport {
  std::string file;
  int64_t file_bytes = 0;
  int64_t tensors = 0;
  int64_t tensor_bytes = 0;
  std::vector<MatrixReport> matrices;
  int64_t copied_tensors = 0;
  int64_t copied_bytes = 0;
};

struct ConversionReport {
  std::string source;
  std::string target;
  TargetFormat format = TargetFormat::kModelOptNvfp4;
  ConvertScope scope = ConvertScope::kExperts;
  std::vector<ShardReport> shards;
  std::vector<KeptMatrix> kept;
  int64_t resumed_shards = 0;  // finished by an earlier run
  double seconds = 0;
  int64_t peak_resident_bytes = 0;
};

// One line of the state file, and back. `source` names the line in errors.
Json ToJson(const ShardReport& report);
Result<ShardReport> ParseShardReport(const Json& json, const std::string& source);

// For --json: totals and every matrix.
Json ToJson(const ConversionReport& report);
// For people: totals, the worst matrix, what was clipped, flushed or re-quantized.
std::string ToText(const ConversionReport& report);

}  // namespace halfbyte
