#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/sm90_moe/gemm_test_problem.h"
#include "kernels/sm90_moe/mma_sync_product.h"

namespace halfbyte::sm90 {
namespace {

class MmaSync : public GpuTest {
 protected:
  // Slot values of rows `h` [rows, intermediate] with alpha 1.
  std::vector<float> Down(const GemmProblem& p, const std::vector<Bf16>& h, GemmVariant variant) {
    const std::vector<TokenTile> tiles = p.Tiles(MaxTileRows(variant));
    const auto all = static_cast<int32_t>(tiles.size());  // of equal width, all wide or all narrow
    const DeviceArray<TokenTile> device_tiles(tiles);
    const int32_t wide = tiles[0].rows > WideTileRows(variant) ? all : 0;
    const DeviceArray<int32_t> count(std::vector<int32_t>{all, wide});
    const DeviceArray<uint8_t> image(p.Image(tiles, h, p.shape.intermediate));
    const DeviceArray<float> alpha(std::vector<float>{1});
    DeviceArray<float> slots(static_cast<size_t>(p.rows() * p.shape.hidden));
    EXPECT_TRUE(Finish(LaunchDown({.gemm = {.experts = p.packed.data(),
                                            .shape = p.shape,
                                            .tiles = device_tiles.data(),
                                            .tile_count = count.data()},
                                   .image = image.data(),
                                   .alpha = alpha.data(),
                                   .slot_values = slots.data()},
                                  variant, Launch::kAfter, stream.get())));
    return slots.Read();
  }

  // [rows, hidden] by mma.sync: both operands with their columns as the packed layout has them.
  std::vector<float> ByMmaSync(const GemmProblem& p, const std::vector<Bf16>& h) {
    const int64_t k = p.shape.intermediate, padded = PaddedK(k), m = p.shape.hidden;
    const auto permuted = [&](int64_t rows, auto&& value) {
      std::vector<Bf16> result(static_cast<size_t>(rows * padded));
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < k; ++c) {
          const int64_t position = c / kGroupK * kGroupK + KPosition(c % kGroupK);
          result[static_cast<size_t>(row * padded + position)] = value(row, c);
        }
      }
      return result;
    };
    const Nvfp4View weights = p.experts[0].down.view();
    const DeviceArray<Bf16> w(
        permuted(m, [&](int64_t row, int64_t c) { return ToBf16(weights.at(row, c)); }));
    const DeviceArray<Bf16> x(permuted(
        p.rows(), [&](int64_t row, int64_t c) { return h[static_cast<size_t>(row * k + c)]; }));
    DeviceArray<float> y(static_cast<size_t>(m * p.rows()));
    EXPECT_TRUE(Finish(
        LaunchMmaSyncProduct(w.data(), m, x.data(), p.rows(), padded, y.data(), stream.get())));
    const std::vector<float> by_weight_row = y.Read();
    std::vector<float> by_token(by_weight_row.size());
    for (int64_t row = 0; row < p.rows(); ++row) {
      for (int64_t c = 0; c < m; ++c) {
        by_token[static_cast<size_t>(row * m + c)] =
            by_weight_row[static_cast<size_t>(c * p.rows() + row)];
      }
    }
    return by_token;
  }
};

// hopper-moe.md §15.1: what makes tiles of any width interchangeable holds between instructions.
TEST_F(MmaSync, GivesTheBitsOfTheProductsInEveryVariant) {
  ASSERT_EQ(PrepareGemms(), cudaSuccess);
  for (const int64_t k : {2048, 2880}) {
    const GemmProblem p({256, k}, {200}, static_cast<uint32_t>(k));
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<Bf16> h;
    for (int64_t i = 0; i < p.rows() * k; ++i) h.push_back(ToBf16(normal(random)));
    const std::vector<float> want = ByMmaSync(p, h);
    for (const GemmVariant variant : kGemmVariants) {
      SCOPED_TRACE(GemmVariantName(variant));
      const std::vector<float> have = Down(p, h, variant);
      ASSERT_EQ(have.size(), want.size());
      EXPECT_EQ(std::memcmp(have.data(), want.data(), have.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace halfbyte::sm90
