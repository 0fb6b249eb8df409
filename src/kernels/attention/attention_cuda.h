// Attention on the GPU (sm_90a): kernels/attention/attention.h with Rounding::kBf16 over FP8 rows,
// between the head norm and rotation of queries before it (bit for bit those of RmsNorm and
// ApplyRope, bf16 after each) and the rotation back of what comes out.
//
// Order of operations. A token's keys are the list of attention.h: its window ascending, then its
// entries ascending, in tiles of 64 keys of the list.
//   score   one chain of the tensor core over the channels; t = score * log2(e) / sqrt(head_dim)
//   weight  m = the tile's largest t rounded up to an integer; w = 2^(t - m) rounded to bf16, below
//           2^-60 zero. As m is an integer, which one it is changes no rounding.
//   M       the largest m so far. Where it grows, what is summed so far is multiplied by 2 to the
//           power of the difference; weights of a tile by 2^(m - M). Factors below 2^-60 are zero.
//   sum     of a tile: sixteen keys of a lane ascending (4 lanes: keys 8 i + 2 lane + {0, 1}),
//           then neighbours; of tiles ascending
//   value   one chain of the tensor core over all keys ascending, sixteen at a time
//   sink    joins maximum and sum at the end, like one more key: its weight rounded to bf16
//   out     value * (1 / sum) -> bf16, rotated back -> bf16
// So a token's bits depend on its own query and rows alone. Few tokens are computed by many blocks
// (scores by tiles, then values by channels), many by one block each, with the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/device_step.h"
#include "numerics/bf16.h"

namespace halfbyte {

struct AttentionArguments {
  DeviceTokens tokens;        // positions, sequences
  DeviceSequences sequences;  // window_pages, context_blocks, replay_starts
  DeviceRope rope;            // of this kind of layer: the last 2 * pairs numbers of a head

  const Bf16* queries = nullptr;  // [tokens, heads * head_dim] as projected; stays
  int64_t heads = 0;
  int64_t head_dim = 0;
  float norm_eps = 0;  // of the head norm, which has no weight

  int64_t window = 0;            // tokens, >= 1
  int64_t rate = 0;              // tokens per entry; 0: window only
  DeviceRows window_rows;        // row p of a sequence's window pages = position p
  DeviceRows entry_rows;         // row e of its context blocks = entry e; unused if rate is 0
  const float* sinks = nullptr;  // [heads]

  // Which of its visible entries a token attends to, ascending; null: all of them.
  const int32_t* selected = nullptr;         // [tokens, selected_stride]
  const int32_t* selected_counts = nullptr;  // [tokens]
  int64_t selected_stride = 0;

  int64_t max_keys = 0;  // no token has more, window and entries; bounds grids and scratch

  Bf16* attended = nullptr;      // out, [tokens, heads * head_dim]; zeros of padding
  std::byte* scratch = nullptr;  // AttentionScratchBytes, 256-byte aligned; no content to keep
};

int64_t AttentionScratchBytes(int64_t tokens, int64_t heads, int64_t max_keys);

// Heads are 512 wide with 64 rotated numbers, a multiple of 64 of them; or 128 with 32, 8 of them.
// Error cudaErrorInvalidValue: anything else, rows whose sizes do not fit, no window.
cudaError_t LaunchAttention(const AttentionArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
