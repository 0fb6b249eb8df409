// The two grouped products of the MoE layer on sm_90a, over token tiles that lie in device memory:
// what runs is decided by nothing the host reads, so a captured graph serves any routing.
//
//   gate_up   g = alpha_gate[e] * (Wgate x), u = alpha_up[e] * (Wup x), each times row_scale[row];
//             h = bf16(SwiGLU(g, u) * row_weight[row]), see kernels/swiglu/swiglu.h
//   down      slot value[row] = alpha[e] * (Wdown h) * row_scale[row], in fp32
//
// Products of weights and activations are exact; sums are fp32, in the order of k, by the tensor
// core. A row's bits do not depend on its tile, on the tile's other rows or on the variant.
//
// Padding rows (TokenTile) may hold anything, NaN too. Of h the columns beyond `intermediate` are
// written as zeros; of x those beyond `hidden` must be finite numbers (the weights there are zero).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/sm90_moe/few_slots.h"
#include "kernels/sm90_moe/sm90_layout.h"

namespace halfbyte::sm90 {

// How tokens are cut into tiles: the more rows an expert has, the wider. Chosen by the host from
// the number of tokens; correct for any counts, fast for those it is meant for.
enum class GemmVariant : int32_t { kFew, kDecode, kMiddle, kWide, kPrefill };
inline constexpr GemmVariant kGemmVariants[] = {GemmVariant::kFew, GemmVariant::kDecode,
                                                GemmVariant::kMiddle, GemmVariant::kWide,
                                                GemmVariant::kPrefill};

// The most rows a tile may have. An expert with more is cut into parts of (nearly) equal size.
constexpr int32_t MaxTileRows(GemmVariant variant) {
  constexpr int32_t kRows[] = {8, 32, 64, 128, 192};
  return kRows[static_cast<int32_t>(variant)];
}
// Tiles with more rows than this must come first: they run in a kernel of their own. 0: all tiles
// run in one.
constexpr int32_t WideTileRows(GemmVariant variant) {
  return variant == GemmVariant::kPrefill ? 112 : 0;
}
// For `slots` rows over `experts`, where uniform routing and the times of docs/performance.md make
// the next wider variant the faster one.
constexpr GemmVariant GemmVariantFor(int64_t slots, int64_t experts) {
  const int64_t mean = CeilDiv(slots, experts < 1 ? 1 : experts);
  return slots <= kMaxFewSlots ? GemmVariant::kFew
         : mean <= 24          ? GemmVariant::kDecode
         : mean <= 60          ? GemmVariant::kMiddle
         : mean <= 128         ? GemmVariant::kWide
                               : GemmVariant::kPrefill;
}

// For reports.
constexpr const char* GemmVariantName(GemmVariant variant) {
  constexpr const char* kNames[] = {"tiles of 8 rows", "tiles of up to 32 rows",
                                    "tiles of up to 64 rows", "tiles of up to 128 rows",
                                    "tiles of up to 192 rows"};
  return kNames[static_cast<int32_t>(variant)];
}

struct GemmArguments {
  const uint8_t* experts = nullptr;  // [local experts] of ExpertShape::bytes() each
  ExpertShape shape;
  const TokenTile* tiles = nullptr;
  const int32_t* tile_count = nullptr;  // [2]: all, and those that come first for being wide
  const float* row_scale = nullptr;     // [rows], or null: the activation scale of each row
};

// Requantizes h to NVFP4 where it is made: every block of 16 channels becomes code * block_scale,
// with the bits of LaunchRequantize.
struct HiddenQuantizer {
  float static_scale = 0;                // 0: h stays as it is
  const int32_t* slot_of_row = nullptr;  // with stats: -1 is padding, which does not count
  Nvfp4DeviceStats* stats = nullptr;     // or null
};

struct GateUpArguments {
  GemmArguments gemm;
  const uint8_t* image = nullptr;     // of x, k = hidden
  const float* alpha_gate = nullptr;  // [local experts]: global_scale, of activations too
  const float* alpha_up = nullptr;    // [local experts]
  const float* row_weight = nullptr;  // [rows], or null: the routing weight, if before `down`
  float limit = std::numeric_limits<float>::infinity();  // SwigluParams
  float swiglu_alpha = 1;
  float swiglu_add = 0;
  HiddenQuantizer quantizer;
  uint8_t* h_image = nullptr;  // out, k = intermediate
};

struct DownArguments {
  GemmArguments gemm;
  const uint8_t* image = nullptr;  // of h, k = intermediate
  const float* alpha = nullptr;    // [local experts]
  float* slot_values = nullptr;    // out, [rows, hidden], every row of every tile
};

// What the launch may assume about the kernel before it in the stream.
enum class Launch : int32_t {
  kAfter,      // it starts when that has ended
  kDependent,  // programmatic dependent launch: the weights stream in while that one ends, so the
               // tile list must have been complete before that kernel let its dependents start
};

// Both launch one grid or two that fill the device once, and never wait.
cudaError_t LaunchGateUp(const GateUpArguments& arguments, GemmVariant variant, Launch launch,
                         cudaStream_t stream);
cudaError_t LaunchDown(const DownArguments& arguments, GemmVariant variant, Launch launch,
                       cudaStream_t stream);

// Once per device, before the first launch and outside of stream capture.
cudaError_t PrepareGemms();

}  // namespace halfbyte::sm90
