// What kernels of a GPU look up in a step: tokens, the sequences they belong to, and where rows of
// the KV cache lie. Plain pointers to device memory, filled once per step (model/cuda/), so that a
// captured graph finds other numbers in the same places. They are filled by copies in the stream
// before the step's first kernel, so that kernels may read them before they wait for others.
//
// Padding: a token whose position is -1 belongs to nobody. Kernels write nothing for it outside of
// its own activation rows, read no page for it, and whatever those rows hold changes no other row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

// Of all tokens of a step, or of those whose logits are wanted; in batch order.
struct DeviceTokens {
  int64_t count = 0;                   // padding included
  const int32_t* positions = nullptr;  // [count]
  const int32_t* sequences = nullptr;  // [count] index into DeviceSequences; any where padding
  const int32_t* token_ids = nullptr;  // [count]; 0 where padding
  const int32_t* source_rows =
      nullptr;  // [count] of wanted tokens: their rows among all; else null
};

// Of the sequences of a step. A sequence's tokens are rows [first_row, first_row + tokens) of the
// step and stand at positions [first_position, first_position + tokens).
struct DeviceSequences {
  int64_t count = 0;  // some may have 0 tokens (padding)
  const int32_t* first_rows = nullptr;
  const int32_t* tokens = nullptr;
  const int32_t* first_positions = nullptr;
  const int32_t* slots = nullptr;  // of the compressors' rings
  const int32_t* replay_starts =
      nullptr;                           // window rows before it have no content: nobody sees them
  const int32_t* replay_ends = nullptr;  // entries of tokens before it are stored already
  const int32_t* context_blocks = nullptr;  // [count, context_stride] page ids
  int64_t context_stride = 0;
  const int32_t* window_pages = nullptr;  // [count, window_stride] page ids
  int64_t window_stride = 0;
};

// Cosines and sines by position, the CPU's (kernels/rope/rope.h): [positions, pairs].
struct DeviceRope {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t pairs = 0;
};

// Rows of one layer's pool of pages. In a page all rows' main parts stand first, then all their
// scales, so that both can be read 16 bytes at a time:
//   attention rows (KvFormat::kFp8)   main: E4M3 codes, then bf16 of the rotary part; scales: E8M0
//   index rows (IndexFormat::kMxfp4)  main: codes; scales: E8M0
// The bytes of both are those of kernels/kv_row/kv_row.h.
struct DeviceRows {
  std::byte* pool = nullptr;
  int64_t rows_per_page = 0;
  int64_t main_bytes = 0;   // of a row; a multiple of 16
  int64_t scale_bytes = 0;  // of a row, padded: 8 for attention rows, 4 for index rows

  HB_HD int64_t page_bytes() const { return rows_per_page * (main_bytes + scale_bytes); }
  // Row i of a sequence whose pages are `table`; i is below 2^31.
  HB_HD std::byte* main(const int32_t* table, int64_t i) const {
    return page(table, i) + row_in_page(i) * main_bytes;
  }
  HB_HD std::byte* scales(const int32_t* table, int64_t i) const {
    return page(table, i) + rows_per_page * main_bytes + row_in_page(i) * scale_bytes;
  }

 private:
  // Divisions of 32 bits: those of 64 take a GPU some fifty instructions.
  HB_HD std::byte* page(const int32_t* table, int64_t i) const {
    return pool +
           table[static_cast<uint32_t>(i) / static_cast<uint32_t>(rows_per_page)] * page_bytes();
  }
  HB_HD int64_t row_in_page(int64_t i) const {
    return static_cast<uint32_t>(i) % static_cast<uint32_t>(rows_per_page);
  }
};

}  // namespace halfbyte
