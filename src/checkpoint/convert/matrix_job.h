// Carries out one job of the plan: reads matrices from the source, converts them, writes their
// tensors, and compares what a reader of the result will decode with what the source decodes to.
#pragma once

#include <vector>

#include "base/result.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/convert/report.h"
#include "checkpoint/model_checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"

namespace halfbyte {

// Runs in the calling thread; holds one converted matrix at a time, and the source's pages are
// dropped after use. Errors: NaN or infinity in the source, scale bytes that are no scales, and
// whatever the writer says.
Result<std::vector<MatrixReport>> ConvertMatrices(const ModelCheckpoint& model,
                                                  const MatrixJob& job, TargetFormat format,
                                                  Nvfp4Rule rule, SafetensorsWriter& writer);

// Piece by piece: byte for byte, or scales as the plan says.
Status CopyTensor(const CopyJob& job, SafetensorsWriter& writer);

}  // namespace halfbyte
