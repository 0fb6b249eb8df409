#include "kernels/sm90_dense/sm90_dense.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/linear/linear.h"
#include "kernels/sm90_dense/dense_layout.h"
#include "kernels/sm90_dense/dense_test_problem.h"
#include "kernels/sm90_dense/reference/dense_reference.h"

namespace halfbyte::sm90 {
namespace {

constexpr DenseFormat kFp8 = DenseFormat::kFp8, kBf16 = DenseFormat::kBf16,
                      kF32 = DenseFormat::kF32;

class Sm90DenseTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(PrepareDense(), cudaSuccess);
  }

  void Pack(PackedProblem& problem) {
    DeviceArray<int32_t> unfit(std::vector<int32_t>{0});
    ASSERT_TRUE(
        Finish(LaunchPackDense(problem.stored, problem.packed(), unfit.data(), stream.get())));
    ASSERT_EQ(unfit.Read()[0], 0);
  }

  // Of these weights, zeroed once for all launches that use it.
  DeviceArray<uint8_t>& Scratch(std::span<const DenseWeight> weights, int64_t tokens) {
    const auto bytes = static_cast<size_t>(DenseScratchBytes(weights, tokens));
    if (scratch_ == nullptr || scratch_->size() < bytes) {
      scratch_ = std::make_unique<DeviceArray<uint8_t>>(std::vector<uint8_t>(bytes));
    }
    return *scratch_;
  }

  // y of one product in fp32.
  std::vector<float> Run(const DenseWeight& weight, const Bf16* x, int64_t tokens) {
    DeviceArray<float> y(static_cast<size_t>(tokens * weight.rows));
    const DenseProduct product{weight, y.data(), DenseOutput::kF32};
    DeviceArray<uint8_t>& scratch = Scratch({&weight, 1}, tokens);
    EXPECT_TRUE(Finish(LaunchDense({.x = x,
                                    .tokens = tokens,
                                    .products = {&product, 1},
                                    .scratch = reinterpret_cast<std::byte*>(scratch.data())},
                                   stream.get())));
    return y.Read();
  }

  // Rows of y against sums in double; y's first row belongs to x's.
  void ExpectExact(const StoredDense& stored, const Bf16* x, int64_t tokens,
                   std::span<const float> y) {
    const auto count = static_cast<size_t>(tokens * stored.rows);
    DeviceArray<double> value(count), bound(count);
    ASSERT_TRUE(
        Finish(LaunchReferenceDense(stored, x, tokens, value.data(), bound.data(), stream.get())));
    const std::vector<double> want = value.Read(), slack = bound.Read();
    int64_t wrong = 0, unusual = 0;
    for (size_t i = 0; i < count; ++i) {
      const double error = std::abs(double{y[i]} - want[i]);
      unusual += error > slack[i] ? 1 : 0;
      if (error <= 2.5 * slack[i]) continue;
      if (++wrong <= 5) {
        ADD_FAILURE() << "token " << i / static_cast<size_t>(stored.rows) << " row "
                      << i % static_cast<size_t>(stored.rows) << ": " << y[i] << " for " << want[i]
                      << " within " << slack[i];
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << count << " sums are wrong";
    EXPECT_LE(unusual, static_cast<int64_t>(count / 1000)) << "of " << count;
  }

  // Bits of rows that both have.
  static void ExpectSameBits(std::span<const float> a, std::span<const float> b, int64_t rows) {
    const size_t count = std::min(a.size(), b.size());
    ASSERT_GT(count, size_t{0});
    if (std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0) return;
    size_t i = 0;
    while (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) ++i;
    FAIL() << "token " << i / static_cast<size_t>(rows) << " row " << i % static_cast<size_t>(rows)
           << ": " << a[i] << " and " << b[i];
  }

  // Exact, and a token's bits the same whatever the number of tokens, and again.
  void Check(const WeightShape& shape, std::span<const int64_t> counts, uint64_t seed) {
    SCOPED_TRACE(testing::Message() << shape.name << " [" << shape.rows << ", " << shape.columns
                                    << "] x " << shape.groups);
    PackedProblem problem(shape, seed);
    Pack(problem);
    const int64_t most = *std::ranges::max_element(counts);
    const int64_t width = shape.groups * shape.columns;
    const DeviceArray<Bf16> x(RandomRows(most * width, seed + 1));
    const std::vector<float> all = Run(problem.weight, x.data(), most);
    const int64_t judged = std::min<int64_t>(most, 12);
    ExpectExact(problem.stored, x.data(), judged, all);
    ExpectExact(problem.stored, x.data() + (most - judged) * width, judged,
                std::span(all).subspan(static_cast<size_t>((most - judged) * shape.rows)));
    for (const int64_t tokens : counts) {
      SCOPED_TRACE(tokens);
      for (int again = 0; again < 3; ++again) {
        ExpectSameBits(Run(problem.weight, x.data(), tokens), all, shape.rows);
      }
    }
    // From another token on, so that each stands elsewhere in its tile.
    const int64_t skipped = most > 3 ? 3 : 0;
    ExpectSameBits(Run(problem.weight, x.data() + skipped * width, most - skipped),
                   std::span(all).subspan(static_cast<size_t>(skipped * shape.rows)), shape.rows);
  }

 private:
  std::unique_ptr<DeviceArray<uint8_t>> scratch_;
};

constexpr int64_t kManyCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 33, 64, 65, 129, 200, 300, 4097};
constexpr int64_t kSomeCounts[] = {1, 8, 9, 31, 64, 65, 128, 200, 257, 600};

TEST_F(Sm90DenseTest, SmallMatricesOfAllKindsAreExactAndTheirBitsAreTheirOwn) {
  const WeightShape shapes[] = {{"a strip's part", kBf16, 8, 128},
                                {"its part", kFp8, 8, 128},
                                {"mix", kBf16, 24, 256},
                                {"mix", kFp8, 24, 256},
                                {"strip", kBf16, 64, 128},
                                {"strip", kFp8, 64, 128},
                                {"odd", kBf16, 136, 192},
                                {"odd", kFp8, 136, 192},
                                {"one more group", kBf16, 72, 1088},
                                {"one more group", kFp8, 200, 1088},
                                {"three segments", kBf16, 136, 2240},
                                {"three segments", kFp8, 264, 2176},
                                {"groups", kBf16, 256, 512, 2},
                                {"groups", kFp8, 256, 512, 2},
                                {"groups of few rows", kBf16, 48, 128, 2},
                                {"of three", kBf16, 3 * 136, 1344, 3},
                                {"of three", kFp8, 3 * 192, 2112, 3},
                                {"plain", kF32, 24, 256},
                                {"plain", kF32, 9, 1024},
                                {"plain groups", kF32, 40, 128, 2}};
  uint64_t seed = 1;
  for (const WeightShape& shape : shapes) Check(shape, kManyCounts, seed++);
}

TEST_F(Sm90DenseTest, TheBundledModelIsExactAndItsBitsAreTheirOwn) {
  const WeightShape shapes[] = {{"kv, q_a", kBf16, 128, 256},     {"q_b", kBf16, 1024, 128},
                                {"index q_b", kBf16, 512, 128},   {"index weights", kBf16, 8, 256},
                                {"o_a", kBf16, 256, 512, 2},      {"o_b", kBf16, 256, 256},
                                {"router", kBf16, 32, 256},       {"shared gate", kBf16, 128, 256},
                                {"shared down", kBf16, 256, 128}, {"head", kBf16, 4096, 256}};
  uint64_t seed = 100;
  for (const WeightShape& shape : shapes) Check(shape, kManyCounts, seed++);
}

TEST_F(Sm90DenseTest, V4FlashIsExactAndItsBitsAreTheirOwn) {
  const WeightShape shapes[] = {
      {"q_a", kFp8, 1024, 4096},          {"kv", kFp8, 512, 4096},
      {"compressor", kBf16, 1024, 4096},  {"index compressor", kBf16, 256, 4096},
      {"index weights", kBf16, 64, 4096}, {"q_b", kFp8, 32768, 1024},
      {"o_a", kFp8, 8192, 4096, 8},       {"o_b", kFp8, 4096, 8192},
      {"router", kBf16, 256, 4096},       {"shared gate", kFp8, 2048, 4096},
      {"shared down", kFp8, 4096, 2048},  {"a part of the head", kBf16, 20000, 4096}};
  uint64_t seed = 200;
  for (const WeightShape& shape : shapes) Check(shape, kSomeCounts, seed++);
}

// The first block of an attention layer of V4-Flash.
TEST_F(Sm90DenseTest, ProductsOfOneLaunchHaveTheBitsOfTheirOwnInEveryOutput) {
  const WeightShape shapes[] = {{"kv", kFp8, 512, 4096},         {"q_a", kFp8, 1024, 4096},
                                {"entry kv", kBf16, 1024, 4096}, {"gate", kBf16, 1024, 4096},
                                {"index kv", kBf16, 256, 4096},  {"plain", kF32, 24, 4096},
                                {"weights", kBf16, 64, 4096}};
  std::vector<std::unique_ptr<PackedProblem>> problems;
  std::vector<DenseWeight> weights;
  for (const WeightShape& shape : shapes) {
    problems.push_back(std::make_unique<PackedProblem>(shape, 300 + weights.size()));
    Pack(*problems.back());
    weights.push_back(problems.back()->weight);
  }
  for (const int64_t tokens : {int64_t{1}, int64_t{7}, int64_t{48}, int64_t{130}, int64_t{700}}) {
    SCOPED_TRACE(tokens);
    const DeviceArray<Bf16> x(RandomRows(tokens * 4096, static_cast<uint64_t>(tokens)));
    for (const DenseOutput output :
         {DenseOutput::kF32, DenseOutput::kF32OfBf16, DenseOutput::kBf16}) {
      std::vector<std::unique_ptr<DeviceArray<uint8_t>>> y;
      std::vector<DenseProduct> products;
      const size_t size = output == DenseOutput::kBf16 ? 2 : 4;
      for (const DenseWeight& w : weights) {
        y.push_back(
            std::make_unique<DeviceArray<uint8_t>>(static_cast<size_t>(tokens * w.rows) * size));
        products.push_back({w, y.back()->data(), output});
      }
      DeviceArray<uint8_t>& scratch = Scratch(weights, tokens);
      ASSERT_TRUE(Finish(LaunchDense({.x = x.data(),
                                      .tokens = tokens,
                                      .products = products,
                                      .scratch = reinterpret_cast<std::byte*>(scratch.data())},
                                     stream.get())));
      for (size_t p = 0; p < products.size(); ++p) {
        SCOPED_TRACE(shapes[p].name);
        std::vector<float> want = Run(weights[p], x.data(), tokens), have(want.size());
        if (output != DenseOutput::kF32) {
          for (float& number : want) number = ToFloat(ToBf16(number));
        }
        const std::vector<uint8_t> bytes = y[p]->Read();
        for (size_t i = 0; i < have.size(); ++i) {
          Bf16 half{};
          std::memcpy(output == DenseOutput::kBf16 ? static_cast<void*>(&half) : &have[i],
                      &bytes[i * size], size);
          if (output == DenseOutput::kBf16) have[i] = ToFloat(half);
        }
        ExpectSameBits(have, want, weights[p].rows);
      }
    }
  }
}

// Rows behind the last token, other tokens and other groups may hold anything.
TEST_F(Sm90DenseTest, NothingElseReachesARow) {
  for (const DenseFormat format : {kFp8, kBf16, kF32}) {
    const WeightShape shape{"groups", format, 256, 1344, 2};
    SCOPED_TRACE(static_cast<int>(format));
    PackedProblem problem(shape, 400);
    Pack(problem);
    for (const int64_t tokens : {int64_t{5}, int64_t{9}, int64_t{40}, int64_t{70}, int64_t{150}}) {
      SCOPED_TRACE(tokens);
      const size_t width = 2 * 1344;
      std::vector<Bf16> rows = RandomRows((tokens + 16) * 2 * 1344, 401);
      const DeviceArray<Bf16> clean(rows);
      const std::vector<float> want = Run(problem.weight, clean.data(), tokens);
      const Bf16 nan{0x7fff};
      std::fill(rows.begin() + tokens * 2 * 1344, rows.end(), nan);
      std::fill_n(rows.begin() + 2 * 2 * 1344, 1344, nan);  // group 0 of token 2
      rows[3 * width + 1343 + 1344] = nan;                  // group 1 of token 3
      const DeviceArray<Bf16> dirty(rows);
      const std::vector<float> have = Run(problem.weight, dirty.data(), tokens);
      int64_t wrong = 0;
      for (size_t i = 0; i < have.size(); ++i) {
        const size_t token = i / 256, group = i % 256 / 128;
        const bool poisoned = (token == 2 && group == 0) || (token == 3 && group == 1);
        wrong +=
            poisoned ? !std::isnan(have[i]) : std::memcmp(&have[i], &want[i], sizeof(float)) != 0;
      }
      EXPECT_EQ(wrong, 0);
    }
  }
}

TEST_F(Sm90DenseTest, LaunchesBehindEachOtherDoNotMeet) {
  const WeightShape shape{"o_b", kFp8, 1024, 4096};
  PackedProblem problem(shape, 500);
  Pack(problem);
  const DeviceArray<Bf16> x(RandomRows(9 * 4096, 501));
  const std::vector<float> want = Run(problem.weight, x.data(), 9);
  DeviceArray<float> y(9 * 1024);
  const DenseProduct product{problem.weight, y.data(), DenseOutput::kF32};
  for (const int64_t tokens : {int64_t{1}, int64_t{8}, int64_t{9}}) {
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(
          LaunchDense(
              {.x = x.data(),
               .tokens = i % 2 == 0 ? tokens : 9,
               .products = {&product, 1},
               .scratch = reinterpret_cast<std::byte*>(Scratch({&problem.weight, 1}, 9).data())},
              stream.get()),
          cudaSuccess);
    }
    ASSERT_TRUE(Finish(cudaSuccess));
    ExpectSameBits(y.Read(), want, 1024);
  }
}

TEST_F(Sm90DenseTest, ScalesAreExactOverTheirRangeInBothForms) {
  const WeightShape shape{"scales", kFp8, 256, 16128};
  StoredBytes bytes(shape, 600);
  for (size_t i = 0; i < bytes.data.size(); ++i) {
    const auto code = static_cast<uint8_t>(i * 37 + i / 256);
    bytes.data[i] = (code & 0x7f) == 0x7f ? uint8_t{0x01} : code;
  }
  for (size_t i = 0; i < bytes.scales.size(); ++i) {
    bytes.scales[i] = static_cast<uint8_t>(kLeastScale + static_cast<int>(i % 126) *
                                                             (kGreatestScale - kLeastScale) / 125);
  }
  PackedProblem problem(shape, bytes);
  Pack(problem);
  // A one in each block of 128 columns alone picks its weights out.
  std::vector<Bf16> rows(126 * 16128);
  for (size_t t = 0; t < 126; ++t) rows[t * 16128 + t * 128 + t] = ToBf16(1.0f);
  const DeviceArray<Bf16> x(rows);
  ExpectExact(problem.stored, x.data(), 126, Run(problem.weight, x.data(), 126));

  std::vector<float> scales;
  for (const uint8_t scale : bytes.scales) {
    scales.push_back(std::ldexp(1.0f, static_cast<int>(scale) - 127));
  }
  const std::vector<uint8_t> packed = problem.ReadPacked();
  const DeviceArray<float> as_f32(scales);
  problem.stored.scales = reinterpret_cast<const std::byte*>(as_f32.data());
  problem.stored.scale = DenseScale::kF32;
  Pack(problem);
  EXPECT_TRUE(problem.ReadPacked() == packed);
}

TEST_F(Sm90DenseTest, PlainWeightsHaveTheBitsOfTheCpu) {
  constexpr int64_t kTokens = 5, kRows = 24, kColumns = 1088;
  const WeightShape shape{"plain", kF32, kRows, kColumns};
  const StoredBytes bytes(shape, 900);
  PackedProblem problem(shape, bytes);
  Pack(problem);
  const std::vector<Bf16> rows = RandomRows(kTokens * kColumns, 901);
  const DeviceArray<Bf16> x(rows);
  std::vector<float> in, want(kTokens * kRows);
  for (const Bf16 number : rows) in.push_back(ToFloat(number));
  LinearReference({in.data(), kTokens, kColumns},
                  {.format = WeightFormat::kF32,
                   .rows = kRows,
                   .columns = kColumns,
                   .data = reinterpret_cast<const std::byte*>(bytes.data.data())},
                  {want.data(), kTokens, kRows});
  ExpectSameBits(Run(problem.weight, x.data(), kTokens), want, kRows);
}

TEST_F(Sm90DenseTest, CountsWhatHasNoExactForm) {
  const WeightShape shape{"unfit", kFp8, 128, 256};
  const auto count = [&](const StoredBytes& bytes, const std::vector<float>* scales) {
    PackedProblem problem(shape, bytes);
    const DeviceArray<float> as_f32(scales == nullptr ? std::vector<float>(2) : *scales);
    if (scales != nullptr) {
      problem.stored.scales = reinterpret_cast<const std::byte*>(as_f32.data());
      problem.stored.scale = DenseScale::kF32;
    }
    DeviceArray<int32_t> unfit(std::vector<int32_t>{0});
    EXPECT_TRUE(
        Finish(LaunchPackDense(problem.stored, problem.packed(), unfit.data(), stream.get())));
    return unfit.Read()[0];
  };
  StoredBytes bytes(shape, 700);
  std::ranges::fill(bytes.data, uint8_t{0x38});
  EXPECT_EQ(count(bytes, nullptr), 0);
  bytes.data[77] = 0x7f;
  bytes.data[200 * 100] = 0xff;
  EXPECT_EQ(count(bytes, nullptr), 2);
  bytes.scales[1] = static_cast<uint8_t>(kGreatestScale + 1);
  bytes.data[130] = 0x80;  // a zero is one with any scale
  EXPECT_EQ(count(bytes, nullptr), 128 * 128 + 2 - 1 - (200 * 100 % 256 >= 128 ? 1 : 0));
  std::ranges::fill(bytes.data, uint8_t{0x38});
  const float inf = std::numeric_limits<float>::infinity();
  for (const float scale : {0.75f, -0.5f, 0.0f, inf, std::ldexp(1.0f, -118)}) {
    const std::vector<float> scales{0.5f, scale};
    EXPECT_EQ(count(bytes, &scales), 128 * 128) << scale;
  }
}

TEST_F(Sm90DenseTest, RefusesWhatItCannotDo) {
  const WeightShape shape{"any", kBf16, 64, 2048};
  PackedProblem problem(shape, 800);
  Pack(problem);
  const DeviceArray<Bf16> x(RandomRows(2 * 2048, 801));
  DeviceArray<float> y(2 * 64);
  const DenseProduct good{problem.weight, y.data(), DenseOutput::kF32};
  auto* const scratch = reinterpret_cast<std::byte*>(Scratch({&problem.weight, 1}, 2).data());
  const auto launch = [&](const DenseProduct& product, const Bf16* from, std::byte* with) {
    return LaunchDense({.x = from, .tokens = 2, .products = {&product, 1}, .scratch = with},
                       stream.get());
  };
  EXPECT_TRUE(Finish(launch(good, x.data(), scratch)));
  EXPECT_EQ(launch(good, x.data() + 1, scratch), cudaErrorInvalidValue);
  EXPECT_EQ(launch(good, x.data(), nullptr), cudaErrorInvalidValue);
  DenseProduct bad = good;
  bad.weight.columns = 2047;
  EXPECT_EQ(launch(bad, x.data(), scratch), cudaErrorInvalidValue);
  bad = good;
  bad.weight.rows = 63;
  EXPECT_EQ(launch(bad, x.data(), scratch), cudaErrorInvalidValue);
  bad = good;
  bad.weight.packed = nullptr;
  EXPECT_EQ(launch(bad, x.data(), scratch), cudaErrorInvalidValue);
  const DenseProduct two[] = {good, good};
  EXPECT_EQ(LaunchDense({.x = x.data(), .tokens = 0, .products = two}, stream.get()), cudaSuccess);
}

}  // namespace
}  // namespace halfbyte::sm90
