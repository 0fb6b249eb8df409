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

// m = (fn . f) * rsqrt(mean(f^2) + eps) for every token; the norm factor comes after the product.
void MixLogits(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
               MatrixView<float> mix) {
  Linear(context, streams, hc.fn, mix);
  const int64_t n = streams.columns;
  context.pool().ParallelFor(streams.rows, RowsPerPiece(n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float mean = SumOfSquares(streams.row(t), n) / static_cast<float>(n);
      const float factor = 1.0f / std::sqrt(mean + hc.norm_eps);
      for (int64_t i = 0; i < mix.columns; ++i) mix.row(t)[i] *= factor;
    }
  });
}

// y = round(sum_j weights[j] * streams_j)
void WeightedSum(const float* streams, const float* weights, int count, int64_t dim,
                 Rounding rounding, float* y) {
  std::fill(y, y + dim, 0.0f);
  for (int j = 0; j < count; ++j) AddScaled(weights[j], streams + j * dim, y, dim);
  for (int64_t i = 0; i < dim; ++i) y[i] = Round(rounding, y[i]);
}

// streams_k = round(post_k * x + sum_j comb_jk * streams_j), j ascending, each step rounded.
void MixStreams(const float* x, const float* post, const float* comb, int n, int64_t dim,
                Rounding rounding, float* streams) {
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    F32x16 old[kMaxStreams];
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

}  // namespace

float PostWeight(float logit) { return 2.0f * Sigmoid(logit); }

void SinkhornMix(const float* logits, int streams, int iterations, float eps, float* comb) {
  const int n = streams;
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
  NormalizeColumns(n, eps, comb);
  for (int i = 1; i < iterations; ++i) {
    NormalizeRows(n, eps, comb);
    NormalizeColumns(n, eps, comb);
  }
}

void HcPre(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
           Rounding rounding, MatrixView<float> mix, MatrixView<float> x, MatrixView<float> post,
           MatrixView<float> comb) {
  MixLogits(context, hc, streams, mix);
  const int n = hc.streams;
  context.pool().ParallelFor(
      streams.rows, RowsPerPiece(streams.columns), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const float* m = mix.row(t);
          float pre[kMaxStreams];
          float logits[kMaxStreams * kMaxStreams];
          for (int j = 0; j < n; ++j) {
            pre[j] = Sigmoid(m[j] * hc.scale[0] + hc.base[j]) + hc.eps;
            post.row(t)[j] = PostWeight(m[n + j] * hc.scale[1] + hc.base[n + j]);
          }
          for (int i = 0; i < n * n; ++i) {
            logits[i] = m[2 * n + i] * hc.scale[2] + hc.base[2 * n + i];
          }
          SinkhornMix(logits, n, hc.sinkhorn_iterations, hc.eps, comb.row(t));
          WeightedSum(streams.row(t), pre, n, x.columns, rounding, x.row(t));
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
          MixStreams(x.row(t), post.row(t), comb.row(t), n, dim, rounding, streams.row(t));
        }
      });
}

void HcHead(const Context& context, const HyperConnection& hc, MatrixView<const float> streams,
            Rounding rounding, MatrixView<float> mix, MatrixView<float> y) {
  MixLogits(context, hc, streams, mix);
  context.pool().ParallelFor(
      streams.rows, RowsPerPiece(streams.columns), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          float weights[kMaxStreams];
          for (int j = 0; j < hc.streams; ++j) {
            weights[j] = Sigmoid(mix.row(t)[j] * hc.scale[0] + hc.base[j]) + hc.eps;
          }
          WeightedSum(streams.row(t), weights, hc.streams, y.columns, rounding, y.row(t));
        }
      });
}

}  // namespace halfbyte
