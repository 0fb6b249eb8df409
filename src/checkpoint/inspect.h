// `halfbyte inspect`: what a checkpoint holds, from headers alone (the scalar scales are read too,
// 4 bytes each; block scales only on request).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/finding.h"
#include "checkpoint/model_checkpoint.h"
#include "checkpoint/weight_scan.h"

namespace halfbyte {

struct InspectOptions {
  bool block_scales = false;  // read every block scale for its range
};

// Modules of one layer that look alike: one module, or a layer's experts.
struct ModuleGroup {
  ModuleKey key;       // of the first; expert is not meaningful
  std::string format;  // StoredFormatName, or the dtype of a plain tensor, or "broken"
  Shape shape;         // logical, of one module
  int64_t modules = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;         // with scales
  ValueRange global_scales;  // as multipliers
  ValueRange input_scales;   // as multipliers
  ValueRange block_scales;   // on request
};

struct Total {
  std::string name;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

struct Inspection {
  std::string directory;
  std::optional<ModelConfig> config;
  std::string naming;
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;                // of tensors
  std::vector<ModuleGroup> groups;  // by scope, layer, module
  std::vector<Total> by_format;     // largest first
  std::vector<Total> by_family;
  Findings findings;
};

// Fails only if there is nothing to look at.
Result<Inspection> Inspect(const std::filesystem::path& directory, const InspectOptions& options);

// Everything, one entry per group.
Json InspectionJson(const Inspection& inspection);

// For people: layers that look alike share a line; at most `max_findings` findings.
std::string InspectionText(const Inspection& inspection, size_t max_findings = 50);

// "attention", "routed experts", "draft stages", ...: the families that totals are given for.
const char* FamilyName(const ModuleKey& key);

// {severity, where, message} each.
Json FindingsJson(const Findings& findings);
std::string FindingsText(const Findings& findings, size_t limit);

}  // namespace halfbyte
