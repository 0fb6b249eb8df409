#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"
#include "tensor/tile_scales.h"

namespace halfbyte {
namespace {

// Rows of very different sizes; zero blocks, blocks that underflow, NaN and infinity among them.
std::vector<Bf16> TestRows(int64_t rows, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> x(static_cast<size_t>(rows * k));
  for (int64_t r = 0; r < rows; ++r) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 24) - 12);
    for (int64_t b = 0; b < k; b += 16) {
      const uint32_t kind = random() % 16;
      const float block_size = kind == 0 ? 0.0f : kind == 1 ? 0x1p-20f : 1.0f;
      for (int64_t i = b; i < b + 16; ++i) {
        x[static_cast<size_t>(r * k + i)] = ToBf16(size * block_size * normal(random));
      }
      if (kind == 2 && r % 3 == 1) x[static_cast<size_t>(r * k + b + 5)] = ToBf16(NAN);
      if (kind == 3 && r % 3 == 1) x[static_cast<size_t>(r * k + b + 7)] = ToBf16(-INFINITY);
    }
  }
  return x;
}

class QuantizeNvfp4Cuda : public GpuTest {
 protected:
  // On the device and on the CPU, everything compared.
  void Compare(int64_t rows, int64_t k, float static_scale, uint32_t seed) {
    const std::vector<Bf16> x = TestRows(rows, k, seed);
    const auto elements = static_cast<size_t>(rows * k);
    DeviceArray<Bf16> input(x), decoded(elements);
    DeviceArray<uint8_t> codes(elements / 2), scales(elements / 16);
    DeviceArray<float> row_scales(static_cast<size_t>(rows));
    DeviceArray<Nvfp4DeviceStats> stats(std::vector<Nvfp4DeviceStats>(1));
    ASSERT_TRUE(Finish(LaunchQuantizeRows({.x = input.data(),
                                           .rows = rows,
                                           .k = k,
                                           .static_scale = static_scale,
                                           .codes = codes.data(),
                                           .block_scales = scales.data(),
                                           .decoded = decoded.data(),
                                           .row_scales = row_scales.data(),
                                           .stats = stats.data()},
                                          stream.get())));
    ThreadPool pool(2);
    const Context context(pool);
    std::vector<uint8_t> want_codes(elements / 2), want_scales(elements / 16);
    std::vector<GlobalScale> want_globals(static_cast<size_t>(rows), GlobalScale(static_scale));
    const FloatRows source = FloatRows::Of(MatrixView<const Bf16>{x.data(), rows, k});
    const Nvfp4Output output{want_codes.data(), want_scales.data()};
    const auto seen = static_scale > 0 ? QuantizeNvfp4(context, source, GlobalScale(static_scale),
                                                       Nvfp4Rule::kAmaxTo6, output)
                                       : QuantizeNvfp4PerRow(context, source, Nvfp4Rule::kAmaxTo6,
                                                             output, want_globals.data());
    ASSERT_TRUE(seen.has_value());
    EXPECT_EQ(codes.Read(), want_codes);
    EXPECT_EQ(scales.Read(), want_scales);
    const std::vector<float> globals = row_scales.Read();
    for (size_t r = 0; r < globals.size(); ++r) ASSERT_EQ(globals[r], want_globals[r].value()) << r;
    const std::vector<Bf16> values = decoded.Read();
    for (size_t i = 0; i < elements; ++i) {
      const float want = DequantizeNvfp4(UnpackE2m1(want_codes.data(), static_cast<int64_t>(i)),
                                         want_scales[i / 16], GlobalScale(1));
      ASSERT_EQ(ToFloat(values[i]), want) << i;
    }
    const Nvfp4DeviceStats counted = stats.Read()[0];
    EXPECT_EQ(static_cast<int64_t>(counted.blocks), seen->blocks);
    EXPECT_EQ(static_cast<int64_t>(counted.zero), seen->zero);
    EXPECT_EQ(static_cast<int64_t>(counted.flushed), seen->flushed);
    EXPECT_EQ(static_cast<int64_t>(counted.at_max), seen->at_max);
    EXPECT_EQ(static_cast<int64_t>(counted.clipped), seen->clipped);
    EXPECT_EQ(static_cast<int64_t>(counted.non_finite), seen->non_finite);
    EXPECT_EQ(std::bit_cast<float>(counted.amax_bits), seen->amax);
  }
};

TEST_F(QuantizeNvfp4Cuda, StaticScalesGiveTheBytesAndCountersOfTheCpu) {  // R10, R18, R81
  uint32_t seed = 1;
  for (const int64_t k : {16, 48, 720, 4096, 7168}) {
    for (const int64_t rows : {1, 7, 64}) Compare(rows, k, 3.0f / 2688, ++seed);
  }
  Compare(2000, 512, 0x1p-12f, 99);
}

TEST_F(QuantizeNvfp4Cuda, ScalesOfEachRowGiveTheBytesAndCountersOfTheCpu) {
  uint32_t seed = 50;
  for (const int64_t k : {16, 48, 720, 4096, 7168}) {
    for (const int64_t rows : {1, 7, 64}) Compare(rows, k, 0, ++seed);
  }
  Compare(2000, 512, 0, 98);
}

TEST_F(QuantizeNvfp4Cuda, ScalesMoveIntoTilesAndBack) {  // R21, R25, R30
  std::mt19937 random(3);
  for (const int64_t blocks : {1, 10, 33, 128, 448}) {
    for (const int64_t rows : {1, 127, 128, 129, 300}) {
      const TiledScales layout{rows, blocks};
      std::vector<uint8_t> linear(static_cast<size_t>(rows * blocks));
      for (uint8_t& byte : linear) byte = static_cast<uint8_t>(random());
      DeviceArray<uint8_t> source(linear), back(linear.size());
      DeviceArray<uint8_t> tiled(static_cast<size_t>(layout.bytes()));
      ASSERT_TRUE(
          Finish(LaunchTileScales(source.data(), rows, blocks, tiled.data(), stream.get())));
      ASSERT_TRUE(
          Finish(LaunchUntileScales(tiled.data(), rows, blocks, back.data(), stream.get())));
      std::vector<uint8_t> want(static_cast<size_t>(layout.bytes()));
      TileScales(linear.data(), layout, want.data());
      ASSERT_EQ(tiled.Read(), want) << rows << " x " << blocks;
      ASSERT_EQ(back.Read(), linear) << rows << " x " << blocks;
    }
  }
}

}  // namespace
}  // namespace halfbyte
