// For the tests on a GPU: random experts and tokens, and the grouped products over them.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "device/cuda/gpu_test.h"
#include "kernels/dispatch_plan/token_tiles.h"
#include "kernels/sm90_moe/sm90_gemm.h"
#include "kernels/sm90_moe/sm90_pack.h"
#include "numerics/bf16.h"

namespace halfbyte::sm90 {

struct RandomExpert {
  Nvfp4Matrix gate, up, down;

  // Every code, and E4M3 scales first_scale..last_scale.
  RandomExpert(const ExpertShape& shape, uint32_t seed, int first_scale, int last_scale)
      : gate(shape.intermediate, shape.hidden, GlobalScale(1.0f)),
        up(shape.intermediate, shape.hidden, GlobalScale(1.0f)),
        down(shape.hidden, shape.intermediate, GlobalScale(1.0f)) {
    std::mt19937 random(seed);
    const auto scales = static_cast<uint32_t>(last_scale - first_scale + 1);
    for (Nvfp4Matrix* m : {&gate, &up, &down}) {
      for (int64_t i = 0; i < m->rows() * m->k() / 2; ++i) {
        m->codes()[i] = static_cast<uint8_t>(random() >> 8);
      }
      for (int64_t i = 0; i < m->view().scale_layout().bytes(); ++i) {
        m->block_scales()[i] =
            static_cast<uint8_t>(static_cast<uint32_t>(first_scale) + (random() >> 8) % scales);
      }
    }
  }
  Nvfp4Expert view() const { return {gate.view(), up.view(), down.view()}; }
};

// Experts with `counts` rows each, in memory of host and device.
class GemmProblem {
 public:
  GemmProblem(const ExpertShape& expert_shape, const std::vector<int32_t>& expert_rows,
              uint32_t seed, int first_scale = 0x28, int last_scale = 0x48)
      : shape(expert_shape), counts(expert_rows) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    ThreadPool pool(2);
    std::vector<uint8_t> bytes(static_cast<size_t>(shape.bytes()) * counts.size());
    for (size_t e = 0; e < counts.size(); ++e) {
      experts.emplace_back(shape, seed + static_cast<uint32_t>(e), first_scale, last_scale);
      PackExpert(pool, experts.back().view(),
                 bytes.data() + static_cast<int64_t>(e) * shape.bytes());
      alpha.push_back(0.01f + 0.001f * static_cast<float>(e));
      alpha_up.push_back(0.02f - 0.001f * static_cast<float>(e));
    }
    packed = DeviceArray<uint8_t>(bytes);
    row_begin.push_back(0);
    for (const int32_t n : counts) row_begin.push_back(row_begin.back() + (n + 7) / 8 * 8);
    for (int64_t i = 0; i < int64_t{rows()} * shape.hidden; ++i)
      x.push_back(ToBf16(normal(random)));
    for (int32_t i = 0; i < rows(); ++i) {
      row_scale.push_back(0.5f + static_cast<float>(i % 7));
      row_weight.push_back(1.0f / static_cast<float>(1 + i % 5));
    }
  }

  int32_t rows() const { return row_begin.back(); }  // padding included
  bool Padding(size_t expert, int32_t row) const {
    return row - row_begin[expert] >= counts[expert];
  }

  std::vector<TokenTile> Tiles(int32_t max_rows) const {
    std::vector<TokenTile> tiles;
    for (size_t e = 0; e < counts.size(); ++e) {
      const int32_t n = TilesOfExpert(counts[e], max_rows);
      for (int32_t i = 0; i < n; ++i) {
        tiles.push_back(TileOfExpert(static_cast<int32_t>(e), row_begin[e], counts[e], i, n));
      }
    }
    return tiles;
  }

  // Rows of numbers in the order of `tiles`; NaN in rows of padding.
  std::vector<uint8_t> Image(const std::vector<TokenTile>& tiles, const std::vector<Bf16>& numbers,
                             int64_t k) const {
    std::vector<uint8_t> image(static_cast<size_t>(ImageBytes(rows(), k)));
    for (const TokenTile& tile : tiles) {
      for (int32_t r = 0; r < tile.rows; ++r) {
        const bool padding = Padding(static_cast<size_t>(tile.expert), tile.row_begin + r);
        for (int64_t c = 0; c < PaddedK(k); ++c) {
          Bf16 value = c < k ? numbers[static_cast<size_t>((tile.row_begin + r) * k + c)] : Bf16{};
          if (padding) value = {0x7fff};
          std::memcpy(image.data() + ImageOffset(tile, k, r, c), &value, 2);
        }
      }
    }
    return image;
  }
  std::vector<Bf16> FromImage(const std::vector<TokenTile>& tiles,
                              const std::vector<uint8_t>& image, int64_t k, int64_t columns) const {
    std::vector<Bf16> numbers(static_cast<size_t>(rows() * columns));
    for (const TokenTile& tile : tiles) {
      for (int32_t r = 0; r < tile.rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          std::memcpy(&numbers[static_cast<size_t>((tile.row_begin + r) * columns + c)],
                      image.data() + ImageOffset(tile, k, r, c), 2);
        }
      }
    }
    return numbers;
  }

  ExpertShape shape;
  std::vector<int32_t> counts;
  std::vector<RandomExpert> experts;
  std::vector<float> alpha, alpha_up, row_scale, row_weight;
  std::vector<int32_t> row_begin;  // [experts + 1]
  std::vector<Bf16> x;             // [rows, hidden]
  DeviceArray<uint8_t> packed{0};
};

}  // namespace halfbyte::sm90
