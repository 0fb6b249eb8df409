// Manifold-constrained hyper-connections: n residual streams per token, mixed before and after
// every attention and MoE block (deepseek-v4.md §2.1). All in fp32; exp is that of
// kernels/simd16_exp.h, so bits depend on no C library. The sums over a token's streams, of squares
// and of products with fn, are in segments (kernels/segment_sum.h).
#pragma once

#include <cstdint>

#include "device/context.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

inline constexpr int kMaxStreams = 16;  // as many as a config may have

// n = streams. A site has fn [(2+n)n, nD], base [(2+n)n], scale [3]; the head has fn [n, nD],
// base [n], scale [1]. Rows of fn: pre (n), post (n), comb (n*n, row-major).
struct HyperConnection {
  WeightMatrix fn;
  const float* base = nullptr;
  const float* scale = nullptr;
  int streams = 4;
  int sinkhorn_iterations = 20;
  float eps = 1e-6f;       // hc_eps
  float norm_eps = 1e-6f;  // rms_norm_eps
};

// Sinkhorn matrix of one token from its n*n scaled logits: softmax of each row + eps, a column
// step, then iterations-1 times a row and a column step. `comb` is row-major [n, n]. A step adds
// the numbers of a line in ascending order and multiplies each by 1 / (sum + eps); softmax likewise
// without eps.
void SinkhornMix(const float* logits, int streams, int iterations, float eps, float* comb);

// The weight of x in each stream: 2 * sigmoid(logit).
float PostWeight(float logit);

// streams: [tokens, n*D]. Writes the block's input x [tokens, D], and post [tokens, n] and
// comb [tokens, n*n] for HcPost. `mix` is scratch [tokens, (2+n)n].
void HcPre(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
           Rounding rounding, MatrixView<float> mix, MatrixView<float> x, MatrixView<float> post,
           MatrixView<float> comb);

// streams_k = post_k * x + sum_j comb_jk * streams_j, in place: the transpose of comb mixes. A
// product, then fused multiply-adds with j ascending, then one rounding.
void HcPost(const Context& context, MatrixView<const float> x, MatrixView<const float> post,
            MatrixView<const float> comb, Rounding rounding, MatrixView<float> streams);

// The final merge of the streams into y [tokens, D]. `mix` is scratch [tokens, n].
void HcHead(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
            Rounding rounding, MatrixView<float> mix, MatrixView<float> y);

}  // namespace halfbyte
