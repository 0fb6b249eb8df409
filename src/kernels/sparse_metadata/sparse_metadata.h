// Which cache rows a query of a compressed attention layer reads, as the int32 tables that paged
// attention kernels take (deepseek-v4.md §3.3, §3.4; moe-layer.md R125-R130). The attention of this
// program finds its rows itself; these two are for kernels of others, and exact.
//
// Compressed entry e of request q lies in slot table[q][e / R] * R + e % R. R counts rows of a
// block, not tokens: 256 tokens a block are R = 2 rows of ratio 128 and R = 64 rows of ratio 4.
//
// Outputs are the caller's and every entry of them is written. A padding token (captured graphs run
// at a fixed size) has length 0 and a row of -1; its request and position are not looked at. Shapes
// that disagree, a request outside the table, a negative position and an entry behind the table's
// last block are faults of the caller and abort.
#pragma once

#include <cstdint>
#include <span>

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct BlockTables {
  MatrixView<const int32_t> blocks;  // [requests, blocks of a request]
  int64_t rows_per_block = 0;        // R
};

inline constexpr int64_t kC128Ratio = 128;

// Columns that a table of C128 entries needs for contexts of max_tokens: one entry per 128 tokens,
// begun ones too, rounded up to a multiple of 128 (what attention kernels of others demand).
constexpr int64_t C128aRowWidth(int64_t max_tokens) {
  const int64_t entries = (max_tokens + kC128Ratio - 1) / kC128Ratio;
  return (entries + 127) / 128 * 128;
}

struct C128aTopkInput {
  std::span<const int64_t> positions;     // [tokens], decode tokens first
  int64_t decode_tokens = 0;              // 0..tokens
  std::span<const int32_t> request;       // [tokens], rows of the tables; read for decode tokens
  std::span<const int64_t> slot_mapping;  // [tokens], negative: a padding token
  BlockTables tables;
};

// The width of a row is its distance to the next: no other number says how much may be written.
struct C128aTopkOutput {
  MatrixView<int32_t> decode_slots;   // [decode_tokens, width]
  std::span<int32_t> decode_lengths;  // [decode_tokens]
  MatrixView<int32_t> prefill_rows;   // [tokens - decode_tokens, width]
};

// A token at position p sees n = min((p + 1) / 128, width) entries. Decode tokens get the slots of
// entries 0..n-1 and length n; prefill tokens get 0..n-1 themselves, rows of the entries that were
// gathered for their request. Then -1. Depends on positions only: once per step, for all layers.
void BuildC128aTopkMetadata(const Context& context, const C128aTopkInput& input,
                            const C128aTopkOutput& output);

struct C4aTopkInput {
  MatrixView<const int32_t> entries;  // [tokens, top_k] of the indexer; negative: none
  std::span<const int32_t> request;   // [tokens]
  std::span<const uint8_t> is_valid;  // [tokens], 0: a padding token
  BlockTables tables;
};

// slots [tokens, top_k]: the slot of each entry, -1 where there is none. lengths [tokens]: how many
// entries there are, a count. Attention reads the first `length` slots, so entries have to be
// packed at the front, as SelectEntries (kernels/indexer) leaves them.
void ComputeC4aGlobalTopk(const Context& context, const C4aTopkInput& input,
                          MatrixView<int32_t> slots, std::span<int32_t> lengths);

}  // namespace halfbyte
