#include "kernels/hyper_connection/hyper_connection.h"

#include <algorithm>
#include <cmath>

#include "kernels/linear/linear.h"
#include "kernels/row_math.h"
#include "kernels/simd16.h"

namespace halfbyte {
namespace {

using namespace HB_SIMD_NAMESPACE;  // NOLINT: the baseline variants of simd16.h

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// rsqrt(mean(f^2) + eps), by which the products of one token's streams f are multiplied.
float NormFactor(const HyperConnection& hc, const float* streams, int64_t n) {
  const float mean = SumOfSquares(streams, n) / static_cast<float>(n);
  return 1.0f / std::sqrt(mean + hc.norm_eps);
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

// streams_k = round(post_k * x + sum_j comb_jk * streams_j), j ascending, each step rounded.
// kStreams = n, or 0 for any n.
template <int kStreams>
void MixStreams(const float* x, const float* post, const float* comb, int any_n, int64_t dim,
                Rounding rounding, float* streams) {
  const int n = kStreams > 0 ? kStreams : any_n;
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    F32x16 old[kStreams > 0 ? kStreams : kMaxStreams];
    for (int j = 0; j < n; ++j) old[j] = Load16(streams + j * dim + i);
    for (int k = 0; k < n; ++k) {
      F32x16 sum = Mul(Set16(post[k]), Load16(x + i));
      for (int j = 0; j < n; ++j) sum = Add(sum, Mul(Set16(comb[j * n + k]), old[j]));
      Store16(streams + k * dim + i, rounding == Rounding::kBf16 ? RoundBf16(sum) : sum);
    }
  }
  for (; i < dim; ++i) {
    float old[kMaxStreams];
    for (int j = 0; j < n; ++j) old[j] = streams[j * dim + i];
    for (int k = 0; k < n; ++k) {
      float sum = post[k] * x[i];
      for (int j = 0; j < n; ++j) sum += comb[j * n + k] * old[j];
      streams[k * dim + i] = Round(rounding, sum);
    }
  }
}

void NormalizeRows(int n, float eps, float* c) {
  for (int j = 0; j < n; ++j) {
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += c[j * n + k];
    for (int k = 0; k < n; ++k) c[j * n + k] /= sum + eps;
  }
}

void NormalizeColumns(int n, float eps, float* c) {
  for (int k = 0; k < n; ++k) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += c[j * n + k];
    for (int j = 0; j < n; ++j) c[j * n + k] /= sum + eps;
  }
}

void NormalizeMany(int n, int iterations, float eps, float* c) {
  NormalizeColumns(n, eps, c);
  for (int i = 1; i < iterations; ++i) {
    NormalizeRows(n, eps, c);
    NormalizeColumns(n, eps, c);
  }
}

// 4 x 4 in each half.
void Transpose(__m256 (&rows)[4]) {
  const __m256 ab_low = _mm256_unpacklo_ps(rows[0], rows[1]);
  const __m256 ab_high = _mm256_unpackhi_ps(rows[0], rows[1]);
  const __m256 cd_low = _mm256_unpacklo_ps(rows[2], rows[3]);
  const __m256 cd_high = _mm256_unpackhi_ps(rows[2], rows[3]);
  rows[0] = _mm256_shuffle_ps(ab_low, cd_low, 0x44);
  rows[1] = _mm256_shuffle_ps(ab_low, cd_low, 0xee);
  rows[2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
  rows[3] = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
}

void NormalizeColumns(float eps, __m256 (&rows)[4]) {
  __m256 sum = _mm256_add_ps(rows[0], rows[1]);
  sum = _mm256_add_ps(_mm256_add_ps(sum, rows[2]), rows[3]);
  const __m256 divisor = _mm256_add_ps(sum, _mm256_set1_ps(eps));
  for (__m256& row : rows) row = _mm256_div_ps(row, divisor);
}

// The same for two matrices of 4 x 4 side by side: what takes long is that each step waits for the
// one before.
void NormalizeMany4(int iterations, float eps, float* a, float* b) {
  __m256 rows[4];
  for (int j = 0; j < 4; ++j) {
    rows[j] = _mm256_set_m128(_mm_loadu_ps(b + 4 * j), _mm_loadu_ps(a + 4 * j));
  }
  NormalizeColumns(eps, rows);
  for (int i = 1; i < iterations; ++i) {
    Transpose(rows);
    NormalizeColumns(eps, rows);
    Transpose(rows);
    NormalizeColumns(eps, rows);
  }
  for (int j = 0; j < 4; ++j) {
    _mm_storeu_ps(a + 4 * j, _mm256_castps256_ps128(rows[j]));
    _mm_storeu_ps(b + 4 * j, _mm256_extractf128_ps(rows[j], 1));
  }
}

// Softmax of each row of logits, + eps.
void SoftmaxRows(const float* logits, int n, float eps, float* comb) {
  for (int j = 0; j < n; ++j) {
    const float* row = logits + j * n;
    const float max = *std::max_element(row, row + n);
    float sum = 0;
    for (int k = 0; k < n; ++k) {
      comb[j * n + k] = std::exp(row[k] - max);
      sum += comb[j * n + k];
    }
    for (int k = 0; k < n; ++k) comb[j * n + k] = comb[j * n + k] / sum + eps;
  }
}

// All of HcPre for one token but the iterations of its matrix. m: its products with fn.
void PreToken(const HyperConnection& hc, const float* m, const float* streams, int64_t dim,
              Rounding rounding, float* x, float* post, float* comb) {
  const int n = hc.streams;
  const float factor = NormFactor(hc, streams, n * dim);  // it comes after the product
  const auto logit = [&](int i, int scale) { return m[i] * factor * hc.scale[scale] + hc.base[i]; };
  float pre[kMaxStreams];
  float logits[kMaxStreams * kMaxStreams];
  for (int j = 0; j < n; ++j) {
    pre[j] = Sigmoid(logit(j, 0)) + hc.eps;
    post[j] = PostWeight(logit(n + j, 1));
  }
  for (int i = 0; i < n * n; ++i) logits[i] = logit(2 * n + i, 2);
  SoftmaxRows(logits, n, hc.eps, comb);
  WeightedSum(streams, pre, n, dim, rounding, x);
}

// The iterations of tokens [begin, end).
void NormalizeTokens(const HyperConnection& hc, int64_t begin, int64_t end,
                     MatrixView<float> comb) {
  int64_t t = begin;
  if (hc.streams == 4) {
    for (; t + 2 <= end; t += 2) {
      NormalizeMany4(hc.sinkhorn_iterations, hc.eps, comb.row(t), comb.row(t + 1));
    }
    if (t == end) return;
    float nobody[16];
    std::fill_n(nobody, 16, 1.0f);
    return NormalizeMany4(hc.sinkhorn_iterations, hc.eps, comb.row(t), nobody);
  }
  for (; t < end; ++t) {
    NormalizeMany(hc.streams, hc.sinkhorn_iterations, hc.eps, comb.row(t));
  }
}

}  // namespace

float PostWeight(float logit) { return 2.0f * Sigmoid(logit); }

void SinkhornMix(const float* logits, int streams, int iterations, float eps, float* comb) {
  SoftmaxRows(logits, streams, eps, comb);
  NormalizeMany(streams, iterations, eps, comb);
}

void HcPre(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
           Rounding rounding, MatrixView<float> mix, MatrixView<float> x, MatrixView<float> post,
           MatrixView<float> comb) {
  Linear(context, streams, hc.fn, mix);
  constexpr int64_t kTokensPerPiece = 2;  // about a microsecond
  context.pool().ParallelFor(streams.rows, kTokensPerPiece, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      PreToken(hc, mix.row(t), streams.row(t), x.columns, rounding, x.row(t), post.row(t),
               comb.row(t));
    }
    NormalizeTokens(hc, begin, end, comb);
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
  Linear(context, streams, hc.fn, mix);
  context.pool().ParallelFor(
      streams.rows, RowsPerPiece(streams.columns), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const float factor = NormFactor(hc, streams.row(t), streams.columns);
          float weights[kMaxStreams];
          for (int j = 0; j < hc.streams; ++j) {
            weights[j] = Sigmoid(mix.row(t)[j] * factor * hc.scale[0] + hc.base[j]) + hc.eps;
          }
          WeightedSum(streams.row(t), weights, hc.streams, y.columns, rounding, y.row(t));
        }
      });
}

}  // namespace halfbyte
