#include "kernels/hyper_connection/hyper_connection.h"

#include <gtest/gtest.h>

#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr float kEps = 1e-6f;
// MDL-09
constexpr float kLogits[16] = {0, 1, 2, 3, 1, 0, 0, 0, 0, 2, 0, 0, 3, 0, 0, 1};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// §2.1 from the softmax on, in double.
std::vector<double> ReferenceMix(const std::vector<double>& logits, size_t n, int iterations,
                                 double eps) {
  std::vector<double> c(n * n);
  const auto divide = [&](size_t outer, size_t inner) {  // lines of stride `inner`
    for (size_t a = 0; a < n; ++a) {
      double sum = eps;
      for (size_t b = 0; b < n; ++b) sum += c[a * outer + b * inner];
      for (size_t b = 0; b < n; ++b) c[a * outer + b * inner] /= sum;
    }
  };
  for (size_t j = 0; j < n; ++j) {
    double sum = 0;
    for (size_t k = 0; k < n; ++k) sum += c[j * n + k] = std::exp(logits[j * n + k]);
    for (size_t k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + eps;
  }
  divide(1, n);  // columns
  for (int i = 1; i < iterations; ++i) {
    divide(n, 1);  // rows
    divide(1, n);
  }
  return c;
}

std::vector<float> Mix(const float* logits, int n, int iterations) {
  std::vector<float> comb(static_cast<size_t>(n * n), NAN);
  SinkhornMix(logits, n, iterations, kEps, comb.data());
  return comb;
}

std::vector<double> RowSums(const std::vector<float>& comb, size_t n) {
  std::vector<double> sums(n);
  for (size_t i = 0; i < n * n; ++i) sums[i / n] += double{comb[i]};
  return sums;
}

TEST(SinkhornMix, HasTheNumbersOfTheFaultCase) {  // MDL-09
  const std::vector<float> comb = Mix(kLogits, 4, 20);
  const double expected[] = {0.014474359, 0.072065998, 0.36677068, 0.54668796,
                             0.27569168,  0.18577014,  0.34781538, 0.1907218,
                             0.050392994, 0.68202511,  0.17281769, 0.094763208,
                             0.65943996,  0.060137753, 0.11259525, 0.16782603};
  EXPECT_TRUE(Near(comb, expected, [](size_t) { return 2e-6; }));
  for (const double sum : RowSums(comb, 4)) EXPECT_NEAR(sum, 0.999999, 2e-6);
  const float equal[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (const float value : Mix(equal, 4, 20)) EXPECT_NEAR(value, 0.24999975, 1e-7);
}

TEST(SinkhornMix, ADifferentNumberOfIterationsGivesOtherNumbers) {
  const std::vector<double> sums = RowSums(Mix(kLogits, 4, 1), 4);
  const double expected[] = {1.1690922, 0.99844902, 1.0392904, 0.79316382};
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(sums[j], expected[j], 2e-6);
  // Logits that converge slowly tell 19 from 20.
  const float slow[16] = {9, 0, 0, 0, 9, 8, 0, 0, 0, 9, 8, 0, 0, 0, 9, 8};
  const std::vector<double> reference =
      ReferenceMix(std::vector<double>(slow, slow + 16), 4, 20, double{kEps});
  const auto tolerance = [&](size_t i) { return 1e-4 * reference[i]; };
  EXPECT_TRUE(Near(Mix(slow, 4, 20), reference, tolerance));
  EXPECT_FALSE(Near(Mix(slow, 4, 19), reference, tolerance));
  EXPECT_FALSE(Near(Mix(slow, 4, 21), reference, tolerance));
}

TEST(SinkhornMix, ColumnsSumToOneAndEveryEntryIsPositive) {
  for (const int n : {1, 2, 3, 4, 7, kMaxStreams}) {
    for (uint32_t seed = 1; seed < 40; ++seed) {
      const std::vector<float> logits = RandomNormal(n * n, seed, seed % 2 == 0 ? 1 : 30);
      const std::vector<float> comb = Mix(logits.data(), n, 20);
      for (int k = 0; k < n; ++k) {
        double sum = 0;
        for (int j = 0; j < n; ++j) sum += double{comb[static_cast<size_t>(j * n + k)]};
        EXPECT_NEAR(sum, 1, 3e-6) << n << " streams, seed " << seed;
      }
      for (const float value : comb) EXPECT_GT(value, 0);
    }
  }
}

TEST(SinkhornMix, EqualsTheDefinition) {  // R113
  for (const int n : {1, 2, 4, 5, kMaxStreams}) {
    for (uint32_t seed = 1; seed < 20; ++seed) {
      const std::vector<float> logits = RandomNormal(n * n, seed, 2);
      const std::vector<double> expected =
          ReferenceMix(std::vector<double>(logits.begin(), logits.end()), static_cast<size_t>(n),
                       20, double{kEps});
      // Each of 40 steps rounds a sum of n, a quotient and a product; the steps do not magnify
      // ratios. The 16 are for exp.
      const double units = 40 * (n + 3) + 16;
      EXPECT_TRUE(Near(Mix(logits.data(), n, 20), expected,
                       [&](size_t i) { return units * kF32Unit * expected[i]; }))
          << n << " streams, seed " << seed;
    }
  }
}

TEST(SinkhornMix, HugeLogitsStayFinite) {
  const float logits[4] = {3e38f, -3e38f, -3e38f, 3e38f};
  const std::vector<float> comb = Mix(logits, 2, 20);
  EXPECT_NEAR(comb[0], 1, 1e-5);
  EXPECT_NEAR(comb[1], 0, 1e-5);
  EXPECT_NEAR(comb[3], 1, 1e-5);
}

TEST(HyperConnection, PostWeightIsTwiceTheSigmoid) {  // MDL-09
  EXPECT_NEAR(PostWeight(0.3f), 1.148885, 1.148885e-6);
  EXPECT_EQ(PostWeight(0), 1);
  EXPECT_EQ(PostWeight(200), 2);
  EXPECT_EQ(PostWeight(-200), 0);
}

// One site or head with random parameters and streams of different size.
struct Site {
  int n;
  int64_t dim, tokens, outputs;
  std::vector<float> fn, base, scale, streams;
  HyperConnection hc;

  Site(int n_streams, int64_t d, int64_t t, bool head, uint32_t seed, Rounding rounding)
      : n(n_streams), dim(d), tokens(t), outputs(head ? n : (2 + n) * n) {
    fn = RandomNormal(outputs * n * dim, seed, 1 / std::sqrt(static_cast<double>(n * dim)));
    base = RandomNormal(outputs, seed + 1);
    scale = RandomNormal(head ? 1 : 3, seed + 2, 2);
    streams = RandomNormal(tokens * n * dim, seed + 3, 3, rounding);
    for (size_t i = 0; i < streams.size(); i += 3) streams[i] = Round(rounding, streams[i] * 5);
    hc = {.fn = {.format = WeightFormat::kF32, .rows = outputs, .columns = n * dim},
          .base = base.data(),
          .scale = scale.data(),
          .streams = n};
    hc.fn.data = reinterpret_cast<const std::byte*>(fn.data());
  }
  Site(const Site&) = delete;

  MatrixView<const float> Streams() const { return {streams.data(), tokens, n * dim}; }
  // m of one token, and how far fp32 may be from it.
  double Logit(int64_t token, int64_t output, double* tolerance) const {
    const float* f = Streams().row(token);
    double sum = 0, squares = 0, magnitude = 0;
    for (int64_t i = 0; i < n * dim; ++i) {
      const double product = double{fn[static_cast<size_t>(output * n * dim + i)]} * double{f[i]};
      sum += product;
      magnitude += std::abs(product);
      squares += double{f[i]} * double{f[i]};
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(n * dim) + 1e-6);
    const double units = static_cast<double>(n * dim) / 16 + 10;
    *tolerance = units * kF32Unit * (magnitude + std::abs(sum)) * factor;
    return sum * factor;
  }
  // The scaled logit of `output`, which takes scale[which].
  double Scaled(int64_t token, int64_t output, size_t which, double* tolerance) const {
    const double m = Logit(token, output, tolerance);
    const double product = m * double{scale[which]}, b = base[static_cast<size_t>(output)];
    *tolerance = *tolerance * std::abs(double{scale[which]}) +
                 2 * kF32Unit * (std::abs(product) + std::abs(b));
    return product + b;
  }
};

struct PreResult {
  std::vector<float> x, post, comb;
};

PreResult Pre(const Site& site, Rounding rounding, int threads = 1) {
  ThreadPool pool(threads);
  const size_t tokens = static_cast<size_t>(site.tokens), n = static_cast<size_t>(site.n);
  PreResult r{std::vector<float>(tokens * static_cast<size_t>(site.dim), NAN),
              std::vector<float>(tokens * n, NAN), std::vector<float>(tokens * n * n, NAN)};
  std::vector<float> mix(tokens * static_cast<size_t>(site.outputs), NAN);
  HcPre(Context(pool), site.hc, site.Streams(), rounding, {mix.data(), site.tokens, site.outputs},
        {r.x.data(), site.tokens, site.dim}, {r.post.data(), site.tokens, site.n},
        {r.comb.data(), site.tokens, site.n * site.n});
  return r;
}

TEST(HcPre, EqualsTheDefinition) {  // R112
  for (const auto& [n, dim, tokens] : {std::tuple{4, 33, 5}, {4, 256, 2}, {2, 7, 3}, {5, 48, 1}}) {
    const Site site(n, dim, tokens, false, 11, Rounding::kNone);
    const PreResult result = Pre(site, Rounding::kNone);
    std::vector<double> x, post, comb, x_tolerance, post_tolerance, comb_tolerance;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<double> row(static_cast<size_t>(dim)), row_tolerance(row.size());
      for (int64_t j = 0; j < n; ++j) {
        double tolerance = 0;
        const double weight = Sigmoid(site.Scaled(t, j, 0, &tolerance)) + 1e-6;
        for (int64_t i = 0; i < dim; ++i) {
          const double f = site.Streams().row(t)[j * dim + i];
          row[static_cast<size_t>(i)] += weight * f;
          row_tolerance[static_cast<size_t>(i)] +=
              (tolerance / 4 + (n + 4) * kF32Unit) * std::abs(f);
        }
        post.push_back(2 * Sigmoid(site.Scaled(t, n + j, 1, &tolerance)));
        post_tolerance.push_back(tolerance / 2 + 6 * kF32Unit);
      }
      x.insert(x.end(), row.begin(), row.end());
      x_tolerance.insert(x_tolerance.end(), row_tolerance.begin(), row_tolerance.end());
      std::vector<double> logits;
      double worst = 0;
      for (int64_t i = 0; i < n * n; ++i) {
        double tolerance = 0;
        logits.push_back(site.Scaled(t, 2 * n + i, 2, &tolerance));
        worst = std::max(worst, tolerance);
      }
      for (const double c : ReferenceMix(logits, static_cast<size_t>(n), 20, 1e-6)) {
        comb.push_back(c);
        // A change of the logits by `worst` changes ratios of rows and columns by four times that.
        comb_tolerance.push_back(c * (4 * worst + (40 * (n + 3) + 16) * kF32Unit));
      }
    }
    EXPECT_TRUE(Near(result.x, x, [&](size_t i) { return x_tolerance[i]; })) << n << ' ' << dim;
    EXPECT_TRUE(Near(result.post, post, [&](size_t i) { return post_tolerance[i]; }));
    EXPECT_TRUE(Near(result.comb, comb, [&](size_t i) { return comb_tolerance[i]; }));
  }
}

TEST(HcPre, PostWeightsAreThoseOfSumsInSegments) {
  Site site(4, 300, 5, false, 15, Rounding::kNone);  // five segments, the last one of 176
  const int64_t columns = 4 * site.dim;
  // What the norm makes of a 1 is its factor.
  for (int64_t t = 0; t < 5; ++t) site.streams[static_cast<size_t>(t * columns)] = 1;
  std::vector<float> mix(static_cast<size_t>(site.tokens * site.outputs));
  LinearSegmentsReference(site.Streams(), site.hc.fn, {mix.data(), site.tokens, site.outputs});
  const std::vector<float> ones(static_cast<size_t>(columns), 1.0f);
  std::vector<float> normed(static_cast<size_t>(site.tokens * columns));
  RmsNormReference(site.Streams(), nullptr, site.hc.norm_eps, Rounding::kNone,
                   {normed.data(), site.tokens, columns});
  const PreResult result = Pre(site, Rounding::kNone);
  for (int64_t t = 0; t < site.tokens; ++t) {
    for (int64_t j = 0; j < 4; ++j) {
      const float logit = mix[static_cast<size_t>(t * site.outputs + 4 + j)];
      const float factor = normed[static_cast<size_t>(t * columns)];
      EXPECT_EQ(result.post[static_cast<size_t>(t * 4 + j)],
                PostWeight(logit * factor * site.scale[1] + site.base[static_cast<size_t>(4 + j)]));
    }
  }
}

TEST(HcPre, RoundsTheBlocksInputOnlyAndOnce) {
  const Site site(4, 65, 6, false, 21, Rounding::kBf16);
  PreResult exact = Pre(site, Rounding::kNone);
  const PreResult rounded = Pre(site, Rounding::kBf16);
  for (float& value : exact.x) value = RoundToBf16(value);
  EXPECT_TRUE(SameBits(rounded.x, exact.x));
  EXPECT_TRUE(SameBits(rounded.post, exact.post));
  EXPECT_TRUE(SameBits(rounded.comb, exact.comb));
  EXPECT_FALSE(AllBf16(rounded.comb));
}

TEST(HcPre, ATokenDependsOnItselfAloneWithAnyNumberOfThreads) {
  const Site site(4, 260, 61, false, 31, Rounding::kNone);
  const PreResult all = Pre(site, Rounding::kNone);
  for (const int threads : {2, 3}) {
    const PreResult other = Pre(site, Rounding::kNone, threads);
    EXPECT_TRUE(SameBits(other.x, all.x) && SameBits(other.post, all.post) &&
                SameBits(other.comb, all.comb));
  }
  Site alone(4, 260, 1, false, 31, Rounding::kNone);
  alone.streams.assign(site.Streams().row(60), site.Streams().row(60) + 4 * 260);
  const PreResult one = Pre(alone, Rounding::kNone);
  EXPECT_TRUE(SameBits(one.x, std::span(all.x).last(260)));
  EXPECT_TRUE(SameBits(one.comb, std::span(all.comb).last(16)));
}

TEST(HcPost, TheTransposeOfCombMixes) {  // R113
  ThreadPool pool(1);
  std::vector<float> streams{1, 10, 100};  // three streams of one dimension
  const std::vector<float> x{1000}, post{1, 2, 3};
  const std::vector<float> comb{0, 1, 0, 0, 0, 1, 5, 0, 0};  // (0,1), (1,2), (2,0)
  HcPost(Context(pool), {x.data(), 1, 1}, {post.data(), 1, 3}, {comb.data(), 1, 9}, Rounding::kNone,
         {streams.data(), 1, 3});
  // stream_k = post_k * x + sum_j comb_jk * stream_j; comb itself would give 1010, 2100, 3005.
  EXPECT_EQ(streams, (std::vector<float>{1500, 2001, 3010}));
}

TEST(HcPost, EqualsTheDefinitionAndRoundsOnce) {
  for (const auto& [n, dim, tokens] : {std::tuple{4, 33, 5}, {2, 7, 70}, {8, 3, 2}}) {
    const std::vector<float> x = RandomNormal(tokens * dim, 1), post = RandomNormal(tokens * n, 2),
                             comb = RandomNormal(tokens * n * n, 3),
                             before = RandomNormal(tokens * n * dim, 4);
    std::vector<double> expected(before.size()), size(before.size());
    for (int t = 0; t < tokens; ++t) {
      for (int k = 0; k < n; ++k) {
        for (int i = 0; i < dim; ++i) {
          const auto at = static_cast<size_t>((t * n + k) * dim + i);
          const auto add = [&](float a, float b) {
            expected[at] += double{a} * double{b};
            size[at] += std::abs(double{a} * double{b});
          };
          add(post[static_cast<size_t>(t * n + k)], x[static_cast<size_t>(t * dim + i)]);
          for (int j = 0; j < n; ++j) {
            add(comb[static_cast<size_t>((t * n + j) * n + k)],
                before[static_cast<size_t>((t * n + j) * dim + i)]);
          }
        }
      }
    }
    const auto compute = [&](Rounding rounding, int threads) {
      ThreadPool pool(threads);
      std::vector<float> streams = before;
      HcPost(Context(pool), {x.data(), tokens, dim}, {post.data(), tokens, n},
             {comb.data(), tokens, n * n}, rounding, {streams.data(), tokens, n * dim});
      return streams;
    };
    std::vector<float> result = compute(Rounding::kNone, 1);
    EXPECT_TRUE(
        Near(result, expected, [&, n = n](size_t i) { return (n + 1) * kF32Unit * size[i]; }));
    EXPECT_TRUE(SameBits(compute(Rounding::kNone, 3), result));
    for (float& value : result) value = RoundToBf16(value);
    EXPECT_TRUE(SameBits(compute(Rounding::kBf16, 2), result));
  }
}

TEST(HcHead, EqualsTheDefinitionAndRoundsOnce) {  // R112
  const int n = 4;
  const int64_t dim = 45, tokens = 3;
  const Site site(n, dim, tokens, true, 41, Rounding::kNone);
  const auto compute = [&](Rounding rounding) {
    ThreadPool pool(2);
    std::vector<float> mix(static_cast<size_t>(tokens * n), NAN);
    std::vector<float> y(static_cast<size_t>(tokens * dim), NAN);
    HcHead(Context(pool), site.hc, site.Streams(), rounding, {mix.data(), tokens, n},
           {y.data(), tokens, dim});
    return y;
  };
  std::vector<double> expected(static_cast<size_t>(tokens * dim)), bound(expected.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < n; ++j) {
      double tolerance = 0;
      const double weight = Sigmoid(site.Scaled(t, j, 0, &tolerance)) + 1e-6;
      for (int64_t i = 0; i < dim; ++i) {
        const double f = site.Streams().row(t)[j * dim + i];
        expected[static_cast<size_t>(t * dim + i)] += weight * f;
        bound[static_cast<size_t>(t * dim + i)] +=
            (tolerance / 4 + (n + 4) * kF32Unit) * std::abs(f);
      }
    }
  }
  std::vector<float> result = compute(Rounding::kNone);
  EXPECT_TRUE(Near(result, expected, [&](size_t i) { return bound[i]; }));
  for (float& value : result) value = RoundToBf16(value);
  EXPECT_TRUE(SameBits(compute(Rounding::kBf16), result));
}

}  // namespace
}  // namespace halfbyte
