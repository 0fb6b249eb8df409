// The router on the GPU: kernels/route/router.h's rules, one warp for a token. Ids are those of
// Route for keys that differ by more than the last bits of exp and log (ties go to the lower id
// here too); weights agree to a few units in the last place.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/route/router_params.h"

namespace halfbyte {

inline constexpr int64_t kMaxRouterExperts = 1024;

// In device memory, by integer atomics; zero them with cudaMemset.
struct CudaRouterCounters {
  unsigned long long rows = 0;
  unsigned long long bad_rows = 0;  // with a NaN or +infinity among the logits
};

struct RouterCallArguments {
  const float* logits = nullptr;  // [tokens, experts]
  int64_t tokens = 0;
  const float* bias = nullptr;  // [experts], or null
  // Hash layers: ids are row token_ids[t] of the table; null: by score. A token id outside the
  // table gives ids of -1 and weights of 0.
  const int32_t* table = nullptr;      // [table_rows, top_k]
  const int32_t* token_ids = nullptr;  // [tokens]
  int64_t table_rows = 0;
  // Tokens at -1 are padding (device_step.h): ids of -1, weights of 0; null: there are none.
  const int32_t* positions = nullptr;      // [tokens]
  int32_t* topk_ids = nullptr;             // out, [tokens, top_k]
  float* topk_weights = nullptr;           // out, [tokens, top_k]
  CudaRouterCounters* counters = nullptr;  // added to; or null
};

// Error cudaErrorInvalidValue: parameters that kernels/route/router.h refuses, more experts than
// kMaxRouterExperts.
cudaError_t LaunchRouter(const RouterParams& params, const RouterCallArguments& arguments,
                         cudaStream_t stream);

}  // namespace halfbyte
