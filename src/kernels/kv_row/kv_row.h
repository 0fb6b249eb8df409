// Rows of the KV cache: how one key vector is stored (deepseek-v4.md §2.3, §2.5, §3.1), and how
// rows lie in pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/context.h"
#include "kernels/token_span.h"
#include "numerics/host_device.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// Keys of attention, which are the values as well: window rows and compressed entries.
//   kF32: head_dim fp32 numbers, exact.
//   kFp8: the first head_dim - rope_dim as E4M3 in blocks of 64 with one E8M0 scale each, the
//         rotary part as bf16. Storing is the model's own rounding (fp8_roundtrip_64), bit for bit,
//         but that rotary numbers below 2^-52 become 0: so are all numbers that bf16 instructions
//         meet here.
enum class KvFormat { kF32, kFp8 };

struct KvRow {
  static constexpr int64_t kBlock = 64;

  KvFormat format = KvFormat::kF32;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;

  int64_t fp8_dim() const { return head_dim - rope_dim; }
  int64_t scale_count() const { return (fp8_dim() + kBlock - 1) / kBlock; }
  int64_t bytes() const;  // kFp8: [E4M3 | bf16 | scales], rounded up to 8 (584 for 512 + 64)
};

void EncodeKvRow(const KvRow& layout, const float* row, std::byte* stored);
void DecodeKvRow(const KvRow& layout, const std::byte* stored, float* row);

namespace simd_avx512 {
// Rows of kFp8, whose parts are multiples of 32, as bf16 numbers, which hold them exactly: word
// [i, l] of rows [count, head_dim / 32, 16] has number 32 i + l of its row in its upper half and
// 32 i + l + 16 in its lower. For machines with AVX-512.
void DecodeKvRowPairs(const KvRow& layout, const std::byte* const* stored, int64_t count,
                      uint32_t* rows);
}  // namespace simd_avx512

// Keys of the indexer.
//   kF32:   dim fp32 numbers, exact, without Hadamard.
//   kMxfp4: Hadamard transform, then MXFP4 blocks of 32 (the model's own rounding): codes, then
//   scales.
// A Hadamard transform on both sides leaves scores unchanged, so queries follow the format as well.
enum class IndexFormat { kF32, kMxfp4 };

struct IndexRow {
  static constexpr int64_t kMaxMxfp4Dim = 1024;

  IndexFormat format = IndexFormat::kF32;
  int64_t dim = 0;  // kMxfp4: a power of two, 2 .. kMaxMxfp4Dim

  int64_t scale_count() const;
  int64_t bytes() const;  // rounded up to 4 (68 for dim 128 in kMxfp4)
};

void EncodeIndexRow(const IndexRow& layout, const float* row, std::byte* stored);
void DecodeIndexRow(const IndexRow& layout, const std::byte* stored, float* row);

// x = H x / sqrt(dim) in place, Sylvester order; dim is a power of two. Its own inverse.
void Hadamard(float* x, int64_t dim);

// What a query vector becomes before it meets stored rows of that format.
void RoundIndexQuery(const IndexRow& layout, float* query);

// Rows of one sequence spread over pages: row i lies in page table[i / rows_per_page].
struct PagedRows {
  std::byte* pool = nullptr;
  const int32_t* table = nullptr;
  int64_t rows_per_page = 0;
  int64_t row_bytes = 0;

  HB_HD std::byte* row(int64_t i) const {
    return pool + (table[i / rows_per_page] * rows_per_page + i % rows_per_page) * row_bytes;
  }
};

// Where the batch's tokens of one sequence go: position p to row p.
struct WindowSequence : TokenSpan {
  PagedRows rows;
};

// Stores the batch's rows [tokens, head_dim].
void StoreKvRows(const Context& context, const KvRow& layout,
                 std::span<const WindowSequence> sequences, MatrixView<const float> rows);

// RoundIndexQuery on every head of queries [tokens, heads * dim].
void RoundIndexQueries(const Context& context, const IndexRow& layout, MatrixView<float> queries);

}  // namespace halfbyte
