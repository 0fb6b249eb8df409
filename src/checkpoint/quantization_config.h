// What config.json and hf_quant_config.json claim about formats, compared with each other and with
// the tensors (CNV-05). The tensors decide; this only reports.
#pragma once

#include <set>
#include <string>

#include "checkpoint/finding.h"
#include "checkpoint/model_checkpoint.h"

namespace halfbyte {

// "NVFP4", "MXFP4", "FP8": the formats of the quantized matrices that are stored.
std::set<std::string> StoredQuantization(const ModelCheckpoint& model);

// A claim without content, content without a claim, exclusions that are not borne out and claims
// that contradict each other are findings.
void CheckQuantizationConfig(const ModelCheckpoint& model, Findings& findings);

}  // namespace halfbyte
