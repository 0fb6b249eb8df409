// `halfbyte verify`: reads every byte of a checkpoint for whatever a loader could trip on, and
// compares it with a reference checkpoint of the same model in any format and naming style.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/finding.h"
#include "checkpoint/model_checkpoint.h"
#include "checkpoint/tool_support.h"
#include "numerics/error_stats.h"

namespace halfbyte {

struct VerifyOptions {
  std::optional<std::filesystem::path> reference;
  int threads = 1;
  std::vector<std::string> tools;  // to judge for (tool_support.h)
};

// How well a format is used, over all its tensors.
struct FormatUse {
  std::string format;
  int64_t matrices = 0;
  int64_t elements = 0;
  int64_t zero = 0;         // elements
  int64_t at_max = 0;       // elements of the largest magnitude
  int64_t scales = 0;       // block scales
  int64_t zero_blocks = 0;  // scale 0, or 4-bit codes all 0
  int64_t max_scales = 0;   // E4M3 0x7e
};

// One module against its reference.
struct Comparison {
  ModuleKey key;
  std::string tensor;
  std::string format;
  std::string reference_format;
  int64_t columns = 1;  // to turn an index into row and column
  ErrorStats error;     // of this checkpoint's values against the reference's
  // NVFP4: blocks whose largest reference value wants a block scale that E4M3 does not have, as
  // convert counts them (Nvfp4BlockStats).
  int64_t clipped_blocks = 0;
};

struct Verification {
  std::string directory;
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::vector<FormatUse> formats;
  std::vector<Comparison> comparisons;  // by scope, layer, module, expert
  Findings findings;
  std::vector<ToolVerdict> tools;

  bool ok() const { return !HasErrors(findings); }
  // No tool that was asked about is known to fail.
  bool loads_everywhere() const;
};

// Fails only if there is nothing to look at, in the directory or in the reference. Memory stays at
// a few matrices: pages are dropped after use.
Result<Verification> Verify(const std::filesystem::path& directory, const VerifyOptions& options);

Json VerificationJson(const Verification& verification);
std::string VerificationText(const Verification& verification, size_t max_findings = 50);

}  // namespace halfbyte
