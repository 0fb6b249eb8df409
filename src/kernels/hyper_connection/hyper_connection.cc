#include "kernels/hyper_connection/hyper_connection.h"

#include <algorithm>
#include <cmath>

#include "kernels/linear/linear.h"
#include "kernels/row_math.h"
#include "kernels/simd16_exp.h"

namespace halfbyte {
namespace {

using namespace HB_SIMD_NAMESPACE;  // NOLINT: the baseline variants of simd16.h

F32x16 Sigmoid(F32x16 x) { return Div(Set16(1.0f), Add(Set16(1.0f), Exp(Mul(Set16(-1.0f), x)))); }

// x = sigmoid(x). Whole vectors are read and written: room for them is the caller's.
void Sigmoids(int64_t count, float* x) {
  for (int64_t i = 0; i < count; i += 16) Store16(x + i, Sigmoid(Load16(x + i)));
}

// y = round(sum_j weights[j] * streams_j)
void WeightedSum(const float* streams, const float* weights, int count, int64_t dim,
                 Rounding rounding, float* y) {
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    F32x16 sum = Zero16();
    for (int j = 0; j < count; ++j) {
      sum = Fma(Set16(weights[j]), Load16(streams + j * dim + i), sum);
    }
    Store16(y + i, rounding == Rounding::kBf16 ? RoundBf16(sum) : sum);
  }
  for (; i < dim; ++i) {
    float sum = 0;
    for (int j = 0; j < count; ++j) sum = std::fma(weights[j], streams[j * dim + i], sum);
    y[i] = Round(rounding, sum);
  }
}

// streams_k = round(post_k * x + sum_j comb_jk * streams_j), j ascending, in fused multiply-adds.
// kStreams = n, or 0 for any n.
template <int kStreams>
void MixStreams(const float* x, const float* post, const float* comb, int any_n, int64_t dim,
                Rounding rounding, float* streams) {
  const int n = kStreams > 0 ? kStreams : any_n;
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    F32x16 old[kStreams > 0 ? kStreams : kMaxStreams];
    for (int j = 0; j < n; ++j) {
      old[j] = Load16(streams + j * dim + i);
      __builtin_prefetch(streams + (2 * n + j) * dim + i, 1);  // two tokens on, maybe far away
    }
    for (int k = 0; k < n; ++k) {
      F32x16 sum = Mul(Set16(post[k]), Load16(x + i));
      for (int j = 0; j < n; ++j) sum = Fma(Set16(comb[j * n + k]), old[j], sum);
      Store16(streams + k * dim + i, rounding == Rounding::kBf16 ? RoundBf16(sum) : sum);
    }
  }
  for (; i < dim; ++i) {
    float old[kMaxStreams];
    for (int j = 0; j < n; ++j) old[j] = streams[j * dim + i];
    for (int k = 0; k < n; ++k) {
      float sum = post[k] * x[i];
      for (int j = 0; j < n; ++j) sum = std::fma(comb[j * n + k], old[j], sum);
      streams[k * dim + i] = Round(rounding, sum);
    }
  }
}

// Divides n lines of n numbers, `line` apart and `step` apart within a line, by their sums + eps.
void NormalizeLines(int n, int line, int step, float eps, float* c) {
  for (int a = 0; a < n; ++a, c += line) {
    float sum = c[0];
    for (int b = 1; b < n; ++b) sum += c[b * step];
    const float factor = 1.0f / (sum + eps);
    for (int b = 0; b < n; ++b) c[b * step] *= factor;
  }
}

// The Sinkhorn matrix of one token's logits, in place.
void SinkhornOfOne(int n, int iterations, float eps, float* c) {
  float rows[kMaxStreams * kMaxStreams] = {};
  for (int j = 0; j < n; ++j) {
    const float max = *std::max_element(c + j * n, c + (j + 1) * n);
    for (int k = 0; k < n; ++k) rows[j * n + k] = c[j * n + k] - max;
  }
  for (int i = 0; i < n * n; i += 16) Store16(rows + i, Exp(Load16(rows + i)));
  NormalizeLines(n, n, 1, 0.0f, rows);
  for (int i = 0; i < n * n; ++i) c[i] = rows[i] + eps;
  NormalizeLines(n, 1, n, eps, c);
  for (int i = 1; i < iterations; ++i) {
    NormalizeLines(n, n, 1, eps, c);
    NormalizeLines(n, 1, n, eps, c);
  }
}

// Each quarter of the vectors is a row of a matrix of 4 x 4.
void Transpose(F32x16 (&rows)[4]) {
  for (__m256 F32x16::*half : {&F32x16::lo, &F32x16::hi}) {
    const __m256 ab_low = _mm256_unpacklo_ps(rows[0].*half, rows[1].*half);
    const __m256 ab_high = _mm256_unpackhi_ps(rows[0].*half, rows[1].*half);
    const __m256 cd_low = _mm256_unpacklo_ps(rows[2].*half, rows[3].*half);
    const __m256 cd_high = _mm256_unpackhi_ps(rows[2].*half, rows[3].*half);
    rows[0].*half = _mm256_shuffle_ps(ab_low, cd_low, 0x44);
    rows[1].*half = _mm256_shuffle_ps(ab_low, cd_low, 0xee);
    rows[2].*half = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
    rows[3].*half = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
  }
}

void NormalizeColumns(float eps, F32x16 (&rows)[4]) {
  const F32x16 sum = Add(Add(Add(rows[0], rows[1]), rows[2]), rows[3]);
  const F32x16 factor = Div(Set16(1.0f), Add(sum, Set16(eps)));
  for (F32x16& row : rows) row = Mul(row, factor);
}

// The same for four tokens of four streams side by side: what takes long is that each step waits
// for the one before.
void SinkhornOfFour(int iterations, float eps, float* c) {
  float by_row[4][16];  // row j of each token
  for (int i = 0; i < 16; ++i) std::copy_n(c + 4 * i, 4, by_row[i % 4] + i / 4 * 4);
  F32x16 m[4];
  for (int j = 0; j < 4; ++j) m[j] = Load16(by_row[j]);
  Transpose(m);
  const F32x16 max = Max(Max(m[0], m[1]), Max(m[2], m[3]));
  for (F32x16& column : m) column = Exp(Sub(column, max));
  NormalizeColumns(0.0f, m);
  for (F32x16& column : m) column = Add(column, Set16(eps));
  Transpose(m);
  NormalizeColumns(eps, m);
  for (int i = 1; i < iterations; ++i) {
    Transpose(m);
    NormalizeColumns(eps, m);
    Transpose(m);
    NormalizeColumns(eps, m);
  }
  for (int j = 0; j < 4; ++j) Store16(by_row[j], m[j]);
  for (int i = 0; i < 16; ++i) std::copy_n(by_row[i % 4] + i / 4 * 4, 4, c + 4 * i);
}

// c: [tokens, n * n] logits, which become matrices.
void Sinkhorn(int n, int64_t tokens, int iterations, float eps, float* c) {
  int64_t t = 0;
  if (n == 4) {
    for (; t + 4 <= tokens; t += 4) SinkhornOfFour(iterations, eps, c + t * 16);
    if (t == tokens) return;
    float some[4 * 16] = {};
    std::copy_n(c + t * 16, (tokens - t) * 16, some);
    SinkhornOfFour(iterations, eps, some);
    std::copy_n(some, (tokens - t) * 16, c + t * 16);
    return;
  }
  for (; t < tokens; ++t) SinkhornOfOne(n, iterations, eps, c + t * n * n);
}

// Of HcPre for one token, but for what the iterations make of comb: the block's input, post, and
// the logits. m: its products with fn, which `factor`, that of its norm, belongs to.
void PreToken(const HyperConnection& hc, const float* m, float factor, const float* streams,
              int64_t dim, Rounding rounding, float* x, float* post, float* logits) {
  const int n = hc.streams;
  float gates[2 * kMaxStreams] = {};  // pre, then post
  const auto scaled = [&](int first, int count, float scale, float* out) {
    for (int i = 0; i < count; ++i) out[i] = m[first + i] * factor * scale + hc.base[first + i];
  };
  scaled(0, n, hc.scale[0], gates);
  scaled(n, n, hc.scale[1], gates + n);
  scaled(2 * n, n * n, hc.scale[2], logits);
  Sigmoids(2 * n, gates);
  for (int j = 0; j < n; ++j) gates[j] += hc.eps;
  for (int j = 0; j < n; ++j) post[j] = 2.0f * gates[n + j];
  WeightedSum(streams, gates, n, dim, rounding, x);
}

}  // namespace

float PostWeight(float logit) {
  float x[16] = {logit};
  Sigmoids(1, x);
  return 2.0f * x[0];
}

void SinkhornMix(const float* logits, int streams, int iterations, float eps, float* comb) {
  std::copy_n(logits, streams * streams, comb);
  Sinkhorn(streams, 1, iterations, eps, comb);
}

void HcPre(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
           Rounding rounding, MatrixView<float> mix, MatrixView<float> x, MatrixView<float> post,
           MatrixView<float> comb) {
  LinearSegments(context, streams, hc.fn, mix);
  constexpr int64_t kTokensPerPiece = 4;  // about a microsecond; of NormFactors
  context.pool().ParallelFor(streams.rows, kTokensPerPiece, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t += kTokensPerPiece) {
      const int64_t count = std::min(kTokensPerPiece, end - t);
      float factors[kTokensPerPiece];
      NormFactors(streams.row(t), count, streams.columns, hc.norm_eps, factors);
      for (int64_t i = t; i < t + count; ++i) {
        PreToken(hc, mix.row(i), factors[i - t], streams.row(i), x.columns, rounding, x.row(i),
                 post.row(i), comb.row(i));
      }
      Sinkhorn(hc.streams, count, hc.sinkhorn_iterations, hc.eps, comb.row(t));
    }
  });
}

void HcPost(const Context& context, MatrixView<const float> x, MatrixView<const float> post,
            MatrixView<const float> comb, Rounding rounding, MatrixView<float> streams) {
  const int n = static_cast<int>(post.columns);
  const int64_t dim = x.columns;
  context.pool().ParallelFor(
      x.rows, RowsPerPiece(streams.columns), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          (n == 4 ? MixStreams<4> : MixStreams<0>)(x.row(t), post.row(t), comb.row(t), n, dim,
                                                   rounding, streams.row(t));
        }
      });
}

void HcHead(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
            Rounding rounding, MatrixView<float> mix, MatrixView<float> y) {
  LinearSegments(context, streams, hc.fn, mix);
  context.pool().ParallelFor(
      streams.rows, RowsPerPiece(streams.columns), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          float factors[4];
          NormFactors(streams.row(t), 1, streams.columns, hc.norm_eps, factors);
          float weights[kMaxStreams] = {};
          for (int j = 0; j < hc.streams; ++j) {
            weights[j] = mix.row(t)[j] * factors[0] * hc.scale[0] + hc.base[j];
          }
          Sigmoids(hc.streams, weights);
          for (int j = 0; j < hc.streams; ++j) weights[j] += hc.eps;
          WeightedSum(streams.row(t), weights, hc.streams, y.columns, rounding, y.row(t));
        }
      });
}

}  // namespace halfbyte
