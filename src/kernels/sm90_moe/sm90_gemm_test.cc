#include "kernels/sm90_moe/sm90_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/sm90_moe/activation_image.h"
#include "kernels/sm90_moe/gemm_test_problem.h"
#include "kernels/sm90_moe/pack_expert.h"
#include "kernels/sm90_moe/reference/reference_gemm.h"
#include "kernels/swiglu/swiglu.h"

namespace halfbyte::sm90 {
namespace {

struct Options {
  SwigluParams swiglu{.limit = 10};
  bool row_scale = true;
  bool row_weight = true;
  Launch launch = Launch::kAfter;
  HiddenQuantizer quantizer{};
};

struct Outputs {
  std::vector<Bf16> h;  // [rows, PaddedK(intermediate)]
  std::vector<float> slots;
};

class Sm90GemmTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(PrepareGemms(), cudaSuccess);
  }

  // Both products, one after the other; nothing is taken from the host between them.
  Outputs Run(const GemmProblem& p, GemmVariant variant, const Options& options,
              const std::function<cudaError_t(const GateUpArguments&, const DownArguments&)>& run) {
    std::vector<TokenTile> tiles = p.Tiles(MaxTileRows(variant));
    const auto wide = std::stable_partition(tiles.begin(), tiles.end(), [&](const TokenTile& tile) {
      return tile.rows > WideTileRows(variant);
    });
    const DeviceArray<TokenTile> device_tiles(tiles);
    const DeviceArray<int32_t> count(std::vector<int32_t>{
        static_cast<int32_t>(tiles.size()), static_cast<int32_t>(wide - tiles.begin())});
    const DeviceArray<float> alpha(p.alpha), alpha_up(p.alpha_up), scale(p.row_scale),
        weight(p.row_weight);
    const DeviceArray<uint8_t> image(p.Image(tiles, p.x, p.shape.hidden));
    DeviceArray<uint8_t> h(static_cast<size_t>(ImageBytes(p.rows(), p.shape.intermediate)));
    DeviceArray<float> slots(static_cast<size_t>(p.rows() * p.shape.hidden));
    const GemmArguments gemm{.experts = p.packed.data(),
                             .shape = p.shape,
                             .tiles = device_tiles.data(),
                             .tile_count = count.data(),
                             .row_scale = options.row_scale ? scale.data() : nullptr};
    const GateUpArguments gate_up{gemm,
                                  image.data(),
                                  alpha.data(),
                                  alpha_up.data(),
                                  options.row_weight ? weight.data() : nullptr,
                                  options.swiglu.limit,
                                  options.swiglu.alpha,
                                  options.swiglu.add,
                                  options.quantizer,
                                  h.data()};
    const DownArguments down{gemm, h.data(), alpha.data(), slots.data()};
    EXPECT_TRUE(Finish(run(gate_up, down)));
    return {p.FromImage(tiles, h.Read(), p.shape.intermediate, PaddedK(p.shape.intermediate)),
            slots.Read()};
  }
  Outputs Run(const GemmProblem& p, GemmVariant variant, const Options& options) {
    return Run(p, variant, options, [&](const GateUpArguments& gate_up, const DownArguments& down) {
      const cudaError_t error = LaunchGateUp(gate_up, variant, options.launch, stream.get());
      return error != cudaSuccess ? error : LaunchDown(down, variant, options.launch, stream.get());
    });
  }
  Outputs RunReference(const GemmProblem& p, const Options& options) {
    return Run(p, GemmVariant::kDecode, options,
               [&](const GateUpArguments& gate_up, const DownArguments& down) {
                 const cudaError_t error = LaunchReferenceGateUp(gate_up, stream.get());
                 return error != cudaSuccess ? error : LaunchReferenceDown(down, stream.get());
               });
  }
};

// Calls body(expert, row) for all rows that are no padding.
template <class Body>
void ForRows(const GemmProblem& p, const Body& body) {
  for (size_t e = 0; e < p.counts.size(); ++e) {
    for (int32_t r = 0; r < p.counts[e]; ++r) body(e, p.row_begin[e] + r);
  }
}

struct Sum {
  double value = 0;
  double magnitude = 0;  // of |a b|
};
Sum Dot(const Nvfp4View& w, int64_t row, const Bf16* x) {
  Sum sum;
  for (int64_t k = 0; k < w.k; ++k) {
    const double term = double{w.at(row, k)} * ToFloat(x[k]);
    sum.value += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}
// What the tensor core's sum may be off by. hopper-moe.md §15.1 saw half of 2e-10 * K with normal
// activations; h, with its few large numbers, gives more, and below K = 1024 the error of single
// additions shows.
double Tolerance(const Sum& sum, int64_t k) {
  return 5e-10 * static_cast<double>(std::max<int64_t>(k, 1024)) * sum.magnitude;
}

// `samples` outputs of each product against sums in double from the checkpoint's bytes.
void ExpectExact(const GemmProblem& p, const Outputs& out, const Options& options, int samples) {
  std::mt19937 random(1);
  const int64_t h_row = PaddedK(p.shape.intermediate);
  const auto pick = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<std::pair<size_t, int32_t>> rows;
  ForRows(p, [&](size_t e, int32_t row) { rows.emplace_back(e, row); });
  for (int i = 0; i < samples; ++i) {
    const auto [e, row] = rows[static_cast<size_t>(pick(std::ssize(rows)))];
    const RandomExpert& expert = p.experts[e];
    const double scale = options.row_scale ? p.row_scale[static_cast<size_t>(row)] : 1;
    const double weight = options.row_weight ? p.row_weight[static_cast<size_t>(row)] : 1;

    const int64_t channel = pick(p.shape.intermediate);
    const Bf16* x = &p.x[static_cast<size_t>(row * p.shape.hidden)];
    const Sum gate = Dot(expert.gate.view(), channel, x), up = Dot(expert.up.view(), channel, x);
    const double ag = double{p.alpha[e]} * scale, au = double{p.alpha_up[e]} * scale;
    const double h = SwigluReference(options.swiglu, gate.value * ag, up.value * au) * weight;
    // |d silu / dg| <= 1.1; the bound on the other factor is its clamp or its value.
    const double g_abs = std::abs(gate.value * ag), u_abs = std::abs(up.value * au) + 1;
    const double slack = 1.1 * Tolerance(gate, p.shape.hidden) * ag * u_abs +
                         g_abs * Tolerance(up, p.shape.hidden) * au;
    const double have = ToFloat(out.h[static_cast<size_t>(row * h_row + channel)]);
    ASSERT_LE(std::abs(have - h), std::abs(h) * 0x1.01p-8 + slack + 1e-6)
        << "h of row " << row << " channel " << channel << ": " << have << " for " << h;

    const int64_t column = pick(p.shape.hidden);
    const Sum sum = Dot(expert.down.view(), column, &out.h[static_cast<size_t>(row * h_row)]);
    const double value = sum.value * double{p.alpha[e]} * scale;
    const double slot = out.slots[static_cast<size_t>(row * p.shape.hidden + column)];
    ASSERT_LE(std::abs(slot - value),
              Tolerance(sum, p.shape.intermediate) * p.alpha[e] * scale + std::abs(value) * 0x1p-22)
        << "slot of row " << row << " column " << column;
  }
}

// Bits of all rows that are no padding.
void ExpectSameBits(const GemmProblem& p, const Outputs& a, const Outputs& b) {
  const size_t h_row = a.h.size() / static_cast<size_t>(p.rows());
  const auto hidden = static_cast<size_t>(p.shape.hidden);
  int64_t different = 0;
  ForRows(p, [&](size_t, int32_t row) {
    const auto r = static_cast<size_t>(row);
    different += std::memcmp(&a.h[r * h_row], &b.h[r * h_row], h_row * sizeof(Bf16)) != 0;
    different +=
        std::memcmp(&a.slots[r * hidden], &b.slots[r * hidden], hidden * sizeof(float)) != 0;
  });
  EXPECT_EQ(different, 0) << "rows of h or of slot values";
}

// Every output, against the plain kernel: nothing lies in the wrong place. Its h is rounded alike,
// now and then to the other side, which moves the slot values a little.
void ExpectNear(const GemmProblem& p, const Outputs& have, const Outputs& want) {
  const size_t h_row = want.h.size() / static_cast<size_t>(p.rows());
  int64_t wrong = 0;
  ForRows(p, [&](size_t, int32_t row) {
    double square = 0;
    for (size_t c = 0; c < h_row; ++c) {
      const size_t i = static_cast<size_t>(row) * h_row + c;
      const float a = ToFloat(have.h[i]), b = ToFloat(want.h[i]);
      wrong += !(std::abs(a - b) <= std::abs(b) * 0x1p-7f + 1e-3f);
    }
    for (int64_t c = 0; c < p.shape.hidden; ++c) {
      square += std::pow(want.slots[static_cast<size_t>(row * p.shape.hidden + c)], 2);
    }
    const double rms = std::sqrt(square / static_cast<double>(p.shape.hidden));
    for (int64_t c = 0; c < p.shape.hidden; ++c) {
      const auto i = static_cast<size_t>(row * p.shape.hidden + c);
      wrong += !(std::abs(have.slots[i] - want.slots[i]) <= 0.02 * rms);
    }
  });
  EXPECT_EQ(wrong, 0) << "outputs";
}

// A row or tile of every size around the widths of the kernels.
const std::vector<int32_t> kUnevenRows = {1, 0, 9, 40, 64, 0, 65, 129, 7, 200};

TEST_F(Sm90GemmTest, EveryVariantEqualsTheSumsInDoubleAndTheOthersBits) {
  const GemmProblem p({1024, 512}, kUnevenRows, 1);
  const Options options;
  const Outputs reference = RunReference(p, options);
  const Outputs first = Run(p, GemmVariant::kDecode, options);
  ExpectExact(p, first, options, 2000);
  for (const GemmVariant variant : kGemmVariants) {
    SCOPED_TRACE(GemmVariantName(variant));
    const Outputs out = Run(p, variant, options);
    ExpectNear(p, out, reference);
    ExpectSameBits(p, out, first);
  }
}

TEST_F(Sm90GemmTest, SizesThatAreMultiplesOf16OnlyWork) {
  for (const ExpertShape shape : {ExpertShape{720, 208}, ExpertShape{16, 16}, ExpertShape{80, 1040},
                                  ExpertShape{2880, 336}}) {
    SCOPED_TRACE(shape.intermediate);
    const GemmProblem p(shape, {3, 70, 0, 130}, 2);
    const Options options;
    const Outputs reference = RunReference(p, options);
    const Outputs first = Run(p, GemmVariant::kDecode, options);
    ExpectExact(p, first, options, 500);
    for (const GemmVariant variant : kGemmVariants) {
      SCOPED_TRACE(GemmVariantName(variant));
      const Outputs out = Run(p, variant, options);
      ExpectNear(p, out, reference);
      ExpectSameBits(p, out, first);
    }
  }
}

TEST_F(Sm90GemmTest, ColumnsOfHBeyondTheIntermediateSizeAreZeros) {
  const GemmProblem p({512, 208}, {5, 17}, 3);
  for (const GemmVariant variant : kGemmVariants) {
    const Outputs out = Run(p, variant, {});
    ForRows(p, [&](size_t, int32_t row) {
      for (int64_t c = 208; c < 512; ++c) {
        ASSERT_EQ(ToFloat(out.h[static_cast<size_t>(row * 512 + c)]), 0)
            << GemmVariantName(variant);
      }
    });
  }
}

// All that LaunchRequantize reads of a plan.
struct DevicePlan {
  DevicePlan(const GemmProblem& p, const std::vector<TokenTile>& own_tiles)
      : tiles(own_tiles), row_count(std::vector<int32_t>{p.rows()}) {
    std::vector<int32_t> slots(static_cast<size_t>(p.rows()), -1), of_atom;
    ForRows(p, [&](size_t, int32_t row) { slots[static_cast<size_t>(row)] = row; });
    for (size_t i = 0; i < own_tiles.size(); ++i) {
      of_atom.insert(of_atom.end(), static_cast<size_t>(own_tiles[i].rows / kTileStep),
                     static_cast<int32_t>(i));
    }
    slot_of_row = DeviceArray<int32_t>(slots);
    tile_of_atom = DeviceArray<int32_t>(of_atom);
  }
  TokenPlan plan() {
    return {.tiles = tiles.data(),
            .row_count = row_count.data(),
            .slot_of_row = slot_of_row.data(),
            .tile_of_atom = tile_of_atom.data()};
  }
  DeviceArray<TokenTile> tiles;
  DeviceArray<int32_t> row_count, slot_of_row{0}, tile_of_atom{0};
};

TEST_F(Sm90GemmTest, HIsRequantizedAsByAPassOfItsOwn) {
  GemmProblem p({512, 208}, kUnevenRows, 12);
  p.alpha_up[4] = 2e36f;  // infinities among the values of h
  p.alpha_up[6] = 1e-30f;
  const float scale = 1.0f / 448;
  for (const GemmVariant variant : kGemmVariants) {
    SCOPED_TRACE(GemmVariantName(variant));
    DevicePlan plan(p, p.Tiles(MaxTileRows(variant)));
    DeviceArray<Nvfp4DeviceStats> fused(std::vector<Nvfp4DeviceStats>(1)),
        separate(std::vector<Nvfp4DeviceStats>(1));
    const Outputs want =
        Run(p, variant, {.swiglu = {}, .row_scale = false},
            [&](const GateUpArguments& gate_up, const DownArguments& down) {
              EXPECT_EQ(LaunchGateUp(gate_up, variant, Launch::kAfter, stream.get()), cudaSuccess);
              EXPECT_EQ(LaunchRequantize({.plan = plan.plan(),
                                          .max_rows = p.rows(),
                                          .image = gate_up.h_image,
                                          .k = p.shape.intermediate,
                                          .static_scale = scale,
                                          .stats = separate.data()},
                                         stream.get()),
                        cudaSuccess);
              return LaunchDown(down, variant, Launch::kAfter, stream.get());
            });
    const Outputs have = Run(p, variant,
                             {.swiglu = {},
                              .row_scale = false,
                              .quantizer = {.static_scale = scale,
                                            .slot_of_row = plan.slot_of_row.data(),
                                            .stats = fused.data()}});
    ExpectSameBits(p, have, want);
    const Nvfp4DeviceStats a = fused.Read()[0], b = separate.Read()[0];
    EXPECT_EQ(std::memcmp(&a, &b, sizeof(a)), 0);
    EXPECT_GT(a.non_finite, 0u);
    EXPECT_GT(a.flushed, 0u);
    EXPECT_GT(a.clipped, 0u);
    EXPECT_LT(a.at_max, a.blocks);
  }
}

TEST_F(Sm90GemmTest, TheActivationTakesItsParameters) {
  const GemmProblem p({512, 512}, {20, 33}, 4);
  for (const SwigluParams swiglu : {SwigluParams{}, SwigluParams{.limit = 0.5f},
                                    SwigluParams{.limit = 7, .alpha = 1.702f, .add = 1}}) {
    for (const bool rows : {false, true}) {
      const Options options{.swiglu = swiglu, .row_scale = rows, .row_weight = !rows};
      ExpectExact(p, Run(p, GemmVariant::kDecode, options), options, 500);
      ExpectExact(p, Run(p, GemmVariant::kPrefill, options), options, 500);
    }
  }
}

TEST_F(Sm90GemmTest, ZeroAndSubnormalScalesAreKept) {
  GemmProblem p({1024, 512}, {20}, 10, 0x00, 0x09);
  for (float& alpha : p.alpha) alpha *= 100;
  for (float& alpha : p.alpha_up) alpha *= 100;
  ExpectExact(p, Run(p, GemmVariant::kDecode, {}), {}, 1000);
}

TEST_F(Sm90GemmTest, ARowDoesNotDependOnItsNeighbours) {
  GemmProblem p({1024, 512}, {64}, 5);
  const Outputs before = Run(p, GemmVariant::kMiddle, {});
  std::mt19937 random(6);
  for (size_t i = 1024; i < p.x.size(); ++i) p.x[i].bits ^= random() & 0x80ff;
  const Outputs after = Run(p, GemmVariant::kMiddle, {});
  EXPECT_EQ(std::memcmp(before.slots.data(), after.slots.data(), 1024 * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(&before.slots[1024], &after.slots[1024], 1024 * sizeof(float)), 0);
}

TEST_F(Sm90GemmTest, DependentLaunchesGiveTheSameBits) {
  const GemmProblem p({2048, 1024}, {1, 2, 31, 8, 1, 5, 12, 3}, 7);
  for (const GemmVariant variant : kGemmVariants) {
    SCOPED_TRACE(GemmVariantName(variant));
    const Outputs plain = Run(p, variant, {});
    for (int i = 0; i < 8; ++i) {
      ExpectSameBits(p, Run(p, variant, {.launch = Launch::kDependent}), plain);
    }
  }
}

TEST_F(Sm90GemmTest, AnExpertOfTheModelIsWithinTheToleranceOfTheTensorCore) {
  const GemmProblem p({4096, 2048}, {1, 200, 30}, 8);
  const Options options;
  const Outputs first = Run(p, GemmVariant::kDecode, options);
  ExpectExact(p, first, options, 1000);
  for (const GemmVariant variant : kGemmVariants) {
    ExpectSameBits(p, Run(p, variant, options), first);
  }
}

TEST_F(Sm90GemmTest, TheDevicePacksWhatTheHostPacks) {
  for (const ExpertShape shape :
       {ExpertShape{1024, 512}, ExpertShape{720, 208}, ExpertShape{16, 16}}) {
    const RandomExpert expert(shape, 11, 0x00, 0x7e);
    std::vector<uint8_t> host(static_cast<size_t>(shape.bytes()));
    ThreadPool pool(1);
    PackExpert(pool, expert.view(), host.data());
    const auto upload = [](const Nvfp4View& m) {
      std::vector<uint8_t> codes(m.codes, m.codes + m.rows * m.k / 2);
      const std::vector<uint8_t> scales(m.block_scales, m.block_scales + m.scale_layout().bytes());
      return std::pair<DeviceArray<uint8_t>, DeviceArray<uint8_t>>(codes, scales);
    };
    const auto gate = upload(expert.gate.view()), up = upload(expert.up.view()),
               down = upload(expert.down.view());
    DeviceArray<uint8_t> packed(host.size());
    ASSERT_TRUE(Finish(LaunchPackExpert({{gate.first.data(), gate.second.data()},
                                         {up.first.data(), up.second.data()},
                                         {down.first.data(), down.second.data()}},
                                        shape, packed.data(), stream.get())));
    EXPECT_TRUE(packed.Read() == host) << shape.hidden << " x " << shape.intermediate;
  }
}

TEST_F(Sm90GemmTest, NoTilesWriteNothing) {
  const GemmProblem none({512, 512}, {0}, 9);
  for (const GemmVariant variant : kGemmVariants) {
    const Outputs out = Run(none, variant, {});
    EXPECT_TRUE(out.h.empty());
  }
}

}  // namespace
}  // namespace halfbyte::sm90
