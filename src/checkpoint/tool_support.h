// `halfbyte verify DIR --for TOOLS`: whether other programs can load a directory, as far as a table
// of what they read knows. The table (tool_table.cc) is data: each row was read in the tool's own
// source at the version it states, and what no row says is unknown.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/finding.h"
#include "checkpoint/model_checkpoint.h"

namespace halfbyte {

enum class Loads : uint8_t { kYes, kNo, kUnknown };
const char* LoadsName(Loads loads);  // "yes", "no", "unknown"

struct ToolVerdict {
  std::string tool;
  std::string version;  // that the table speaks of; empty for halfbyte itself
  Loads loads = Loads::kUnknown;
  std::string reason;
  std::string remedy;  // the `halfbyte convert` that would help; empty if none does
  std::string source;  // where the reason was read, and when
};

// What decides whether somebody's loader takes a model. Formats are "unquantized", "fp8", "mxfp4",
// "mxfp4-ct", "nvfp4-modelopt", "nvfp4-ct", or several of them joined by "+".
struct ModelTraits {
  // "official", "official-below-model" (model.layers.0.attn), "huggingface", or "prefixed" by
  // language_model.
  std::string names;
  std::string layout;        // of the routed experts: "per-expert" or "fused"
  std::string experts;       // their formats
  std::string attention;     // formats of attention's projections
  std::string method;        // quant_method, "none"; "fp8+nvfp4": fp8 with moe_quant_algo NVFP4
  std::string expert_dtype;  // as config.json says, "" if it does not
};
ModelTraits TraitsOf(const ModelCheckpoint& model);

// One line of the table. A field that is empty fits everything; the first line that fits counts.
struct ToolRow {
  std::string_view tool;
  std::string_view names;
  std::string_view layout;
  std::string_view experts;
  std::string_view method;
  Loads loads;
  std::string_view reason;
  std::string_view convert;  // arguments after DIR and OUT; empty if no conversion helps
};
struct ToolVersion {
  std::string_view tool;
  std::string_view version;
  std::string_view expert_dtype;  // that it assumes if config.json has none; empty: it looks itself
  std::string_view source;
};
std::span<const ToolVersion> KnownTools();
std::span<const ToolRow> ToolRows();

// "a,b" as names of tools; "all" is every one. Error: one that nobody knows, with those that are.
Result<std::vector<std::string>> ParseTools(std::string_view list);

// In the order of `tools`. `findings` are those of verify: what is broken nobody loads.
std::vector<ToolVerdict> JudgeTools(const ModelCheckpoint& model, const Findings& findings,
                                    const std::vector<std::string>& tools);

Json ToolsJson(const std::vector<ToolVerdict>& tools);
std::string ToolsText(const std::vector<ToolVerdict>& tools);  // empty for none

}  // namespace halfbyte
