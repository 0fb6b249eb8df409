// Whether the modules that a quantization section excludes, and those that it does not, are stored
// as it says (CNV-05). Every expert is looked at: lists name single ones.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/finding.h"
#include "checkpoint/model_checkpoint.h"

namespace halfbyte {

struct ExclusionList {
  std::string file;                   // that holds it, for findings
  std::vector<std::string> patterns;  // module_pattern.h
  bool nvfp4 = false;                 // what it excludes from; else there is nothing to compare
};

void CheckExclusions(const ExclusionList& list, const ModelCheckpoint& model, Findings& findings);

}  // namespace halfbyte
