// Scores of visible entries on the GPU (indexer.h has the order of operations), in two launches:
// queries become what the products take, then each of them meets the keys.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/device_step.h"
#include "numerics/bf16.h"

namespace halfbyte {

struct IndexScoreArguments {
  // Some tokens of a step: [first, first + count) of `tokens`.
  DeviceTokens tokens;
  int64_t first = 0;
  int64_t count = 0;
  DeviceSequences sequences;
  DeviceRope rope;
  const Bf16* queries = nullptr;   // [tokens, heads * dim], as projected
  const float* weights = nullptr;  // [tokens, heads]
  float weight_factor = 1;
  int64_t heads = 0;  // 1 .. 64
  int64_t dim = 0;    // 64 or 128
  int64_t rate = 4;
  int64_t skip = 0;         // tokens that see no more entries than this get no scores
  int64_t max_entries = 0;  // no token sees more
  DeviceRows keys;
  std::byte* packed = nullptr;  // [count] PackedIndexQueryBytes(heads); 256-byte aligned
  uint32_t* scores = nullptr;   // out, [count, stride] ordered_score.h of visible entries
  int64_t stride = 0;           // >= max_entries
};

int64_t PackedIndexQueryBytes(int64_t heads);

// Rotation, Hadamard transform, MXFP4 rounding; weights times their factor.
cudaError_t LaunchPackIndexQueries(const IndexScoreArguments& arguments, cudaStream_t stream);
cudaError_t LaunchIndexScores(const IndexScoreArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
