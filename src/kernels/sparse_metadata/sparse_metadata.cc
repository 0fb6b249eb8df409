#include "kernels/sparse_metadata/sparse_metadata.h"

#include <algorithm>

#include "base/check.h"

namespace halfbyte {
namespace {

constexpr int32_t kNone = -1;
constexpr int64_t kEntriesPerPiece = 32768;

int64_t GrainRows(int64_t width) {
  return std::max<int64_t>(1, kEntriesPerPiece / std::max<int64_t>(1, width));
}

int64_t CheckedRequest(const BlockTables& tables, int64_t request) {
  HB_CHECK(request >= 0 && request < tables.blocks.rows, "request {} of {}", request,
           tables.blocks.rows);
  return request;
}

int32_t SlotOf(const BlockTables& tables, int64_t request, int64_t entry) {
  const int64_t block = entry / tables.rows_per_block;
  HB_CHECK(block < tables.blocks.columns, "entry {} lies in block {} of {}", entry, block,
           tables.blocks.columns);
  const int64_t first = int64_t{tables.blocks.row(request)[block]} * tables.rows_per_block;
  return static_cast<int32_t>(first + entry % tables.rows_per_block);
}

int64_t VisibleC128Entries(int64_t position, int64_t width) {
  HB_CHECK(position >= 0, "position {}", position);
  return std::min((position + 1) / kC128Ratio, width);
}

}  // namespace

void BuildC128aTopkMetadata(const Context& context, const C128aTopkInput& input,
                            const C128aTopkOutput& output) {
  const int64_t tokens = std::ssize(input.positions);
  const int64_t decode = input.decode_tokens;
  HB_CHECK(decode >= 0 && decode <= tokens && std::ssize(input.request) == tokens &&
               std::ssize(input.slot_mapping) == tokens && input.tables.rows_per_block >= 1,
           "{} of {} tokens decode, {} requests, {} slots, {} rows a block", decode, tokens,
           input.request.size(), input.slot_mapping.size(), input.tables.rows_per_block);
  HB_CHECK(output.decode_slots.rows == decode && std::ssize(output.decode_lengths) == decode &&
               output.prefill_rows.rows == tokens - decode,
           "{} decode rows, {} lengths, {} prefill rows for {} + {} tokens",
           output.decode_slots.rows, output.decode_lengths.size(), output.prefill_rows.rows, decode,
           tokens - decode);
  const int64_t width = output.decode_slots.columns;
  context.pool().ParallelFor(decode, GrainRows(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto at = static_cast<size_t>(t);
      int32_t* slots = output.decode_slots.row(t);
      int64_t n = 0;
      if (input.slot_mapping[at] >= 0) {
        n = VisibleC128Entries(input.positions[at], width);
        const int64_t request = CheckedRequest(input.tables, input.request[at]);
        for (int64_t e = 0; e < n; ++e) slots[e] = SlotOf(input.tables, request, e);
      }
      std::fill(slots + n, slots + width, kNone);
      output.decode_lengths[at] = static_cast<int32_t>(n);
    }
  });
  const int64_t prefill_width = output.prefill_rows.columns;
  context.pool().ParallelFor(
      tokens - decode, GrainRows(prefill_width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const auto at = static_cast<size_t>(decode + t);
          int32_t* rows = output.prefill_rows.row(t);
          const int64_t n = input.slot_mapping[at] < 0
                                ? 0
                                : VisibleC128Entries(input.positions[at], prefill_width);
          for (int64_t e = 0; e < n; ++e) rows[e] = static_cast<int32_t>(e);
          std::fill(rows + n, rows + prefill_width, kNone);
        }
      });
}

void ComputeC4aGlobalTopk(const Context& context, const C4aTopkInput& input,
                          MatrixView<int32_t> slots, std::span<int32_t> lengths) {
  const int64_t tokens = input.entries.rows;
  const int64_t top_k = input.entries.columns;
  HB_CHECK(std::ssize(input.request) == tokens && std::ssize(input.is_valid) == tokens &&
               slots.rows == tokens && slots.columns == top_k && std::ssize(lengths) == tokens &&
               input.tables.rows_per_block >= 1,
           "{} requests, {} flags, slots [{}, {}], {} lengths for entries [{}, {}]",
           input.request.size(), input.is_valid.size(), slots.rows, slots.columns, lengths.size(),
           tokens, top_k);
  context.pool().ParallelFor(tokens, GrainRows(top_k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto at = static_cast<size_t>(t);
      std::fill_n(slots.row(t), top_k, kNone);
      lengths[at] = 0;
      if (input.is_valid[at] == 0) continue;
      const int64_t request = CheckedRequest(input.tables, input.request[at]);
      for (int64_t j = 0; j < top_k; ++j) {
        const int32_t entry = input.entries.row(t)[j];
        if (entry < 0) continue;
        slots.row(t)[j] = SlotOf(input.tables, request, entry);
        ++lengths[at];
      }
    }
  });
}

}  // namespace halfbyte
