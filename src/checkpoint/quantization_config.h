// What config.json and hf_quant_config.json claim about formats, compared with each other and with
// the tensors (CNV-05). The tensors decide; this only reports.
#pragma once

#include <string_view>

#include "checkpoint/finding.h"
#include "checkpoint/model_checkpoint.h"

namespace halfbyte {

// Whether an ignore / exclude_modules entry covers a module:
//   "re:EXPRESSION" matches from the beginning of the name;
//   anything else is a glob (* and ?) for the name or for one of its parents, so "model.layers.1"
//   covers "model.layers.1.mlp.gate" but not "model.layers.10.mlp.gate".
// An expression that is none matches nothing.
bool CoversModule(std::string_view pattern, std::string_view module);

void CheckQuantizationConfig(const ModelCheckpoint& model, Findings& findings);

}  // namespace halfbyte
