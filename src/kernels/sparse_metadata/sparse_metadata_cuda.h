// sparse_metadata.h on the GPU: the same tables, every entry equal. All pointers are device memory.
// Where the CPU aborts on a fault of the caller (a request outside the table, a negative position,
// an entry behind the last block) these write -1 for the entry instead: nothing outside of the
// tables is read or written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace halfbyte {

struct DeviceBlockTables {
  const int32_t* blocks = nullptr;  // [requests, columns]
  int64_t requests = 0;
  int64_t columns = 0;
  int64_t rows_per_block = 0;
};

struct C128aTopkArguments {
  const int64_t* positions = nullptr;  // [tokens], decode tokens first
  int64_t tokens = 0;
  int64_t decode_tokens = 0;
  const int32_t* request = nullptr;       // [tokens]
  const int64_t* slot_mapping = nullptr;  // [tokens], negative: a padding token
  DeviceBlockTables tables;
  int32_t* decode_slots = nullptr;  // out, [decode_tokens, decode_width]
  int64_t decode_width = 0;
  int32_t* decode_lengths = nullptr;  // out, [decode_tokens]
  int32_t* prefill_rows = nullptr;    // out, [tokens - decode_tokens, prefill_width]
  int64_t prefill_width = 0;
};
cudaError_t LaunchC128aTopkMetadata(const C128aTopkArguments& arguments, cudaStream_t stream);

struct C4aTopkArguments {
  const int32_t* entries = nullptr;  // [tokens, top_k]
  int64_t tokens = 0;
  int64_t top_k = 0;
  const int32_t* request = nullptr;   // [tokens]
  const uint8_t* is_valid = nullptr;  // [tokens]
  DeviceBlockTables tables;
  int32_t* slots = nullptr;    // out, [tokens, top_k]
  int32_t* lengths = nullptr;  // out, [tokens]
};
cudaError_t LaunchC4aGlobalTopk(const C4aTopkArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
