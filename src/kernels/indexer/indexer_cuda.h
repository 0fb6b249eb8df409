// Chooses the entries of a C4 layer on the GPU: from index queries and weights as they were
// projected to each token's list, as kernels/indexer/indexer.h has it, bit for bit: the rotation,
// the Hadamard transform and MXFP4 rounding of queries (kernels/kv_row), the scores of all visible
// entries, and the best of them exactly (ties to the lower entry, NaN last).
//
// A token at position p sees (p + 1) / rate entries. One that sees no more than it may choose
// chooses all of them, and is not scored. Kernels look at positions themselves: in a captured graph
// the host knows bounds only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/device_step.h"
#include "numerics/bf16.h"

namespace halfbyte {

struct SelectArguments {
  DeviceTokens tokens;        // positions, sequences
  DeviceSequences sequences;  // first_positions, context_blocks
  DeviceRope rope;            // of C4 layers; turns the last 2 * pairs numbers of a head

  const Bf16* queries = nullptr;   // [tokens, heads * dim], not yet rotated; stays
  const float* weights = nullptr;  // [tokens, heads], not yet scaled; stays
  float weight_factor = 1;         // of each weight, rounded once: 1 / sqrt(dim * heads)

  int64_t heads = 0;  // 1 .. 64
  int64_t dim = 0;    // 64 or 128
  int64_t rate = 4;
  int64_t top_k = 0;        // >= 1
  int64_t max_entries = 0;  // no token sees more; bounds grids and scratch
  DeviceRows keys;          // index rows in the sequences' context blocks

  int32_t* selected = nullptr;   // out, [tokens, top_k]: ascending, then -1
  int32_t* counts = nullptr;     // out, [tokens]: min(top_k, visible); 0 of padding
  std::byte* scratch = nullptr;  // SelectScratchBytes, 256-byte aligned; no content to keep
};

// Bounded: long prompts are scored some tokens at a time (at most 64 MiB of scores, or one token).
// What is enough for some sizes is enough for all smaller ones.
int64_t SelectScratchBytes(int64_t tokens, int64_t heads, int64_t max_entries);

// Error cudaErrorInvalidValue: heads, dim, rate or top_k out of range, more rotated numbers than
// dim.
cudaError_t LaunchSelect(const SelectArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
