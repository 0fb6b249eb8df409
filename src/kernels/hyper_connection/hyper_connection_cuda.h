// Hyper-connections on the GPU, between two blocks of a model: HcPost, HcPre and RmsNorm of the CPU
// (hyper_connection.h, kernels/rms_norm) with Rounding::kBf16, in their order, bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "numerics/bf16.h"

namespace halfbyte {

// HyperConnection with its numbers in device memory, fn in fp32.
struct DeviceHyperConnection {
  const float* fn = nullptr;     // [(2+n)n, n*D], of the head [n, n*D]
  const float* base = nullptr;   // [(2+n)n]; [n]
  const float* scale = nullptr;  // [3]; [1]
  int streams = 4;
  int sinkhorn_iterations = 20;
  float eps = 1e-6f;
  float norm_eps = 1e-6f;
};

// From the output y of one block to the input x of the next.
struct BoundaryArguments {
  int64_t tokens = 0;
  int64_t hidden = 0;
  int streams = 0;
  Bf16* residual = nullptr;  // [tokens, streams * hidden], in place
  const Bf16* y = nullptr;   // [tokens, hidden]; null: nothing goes into the streams

  DeviceHyperConnection entered;  // fn null: no block is entered, the rest is not looked at
  const float* norm = nullptr;    // [hidden], of the input
  float norm_eps = 0;
  Bf16* x = nullptr;  // out, [tokens, hidden]

  // What the way into the streams needs: read if there is a y, then written if a block is entered.
  float* post = nullptr;         // [tokens, streams]
  float* comb = nullptr;         // [tokens, streams * streams]
  std::byte* scratch = nullptr;  // BoundaryScratchBytes, 256-byte aligned; no content to keep
};

int64_t BoundaryScratchBytes(int64_t tokens, int64_t hidden, int streams);

// Error cudaErrorInvalidValue: other numbers of streams than 1, 2 and 4; a hidden size beyond 8,192
// or no multiple of 8, or of 256 where there are several streams.
cudaError_t LaunchBoundary(const BoundaryArguments& arguments, cudaStream_t stream);

// HcHead and RmsNorm: the head's input.
struct MergeStreamsArguments {
  int64_t tokens = 0;
  int64_t hidden = 0;
  const Bf16* residual = nullptr;  // [tokens, streams * hidden]
  DeviceHyperConnection head;
  const float* norm = nullptr;  // [hidden]
  float norm_eps = 0;
  Bf16* x = nullptr;             // out, [tokens, hidden]
  std::byte* scratch = nullptr;  // as of a boundary
};
cudaError_t LaunchMergeStreams(const MergeStreamsArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
