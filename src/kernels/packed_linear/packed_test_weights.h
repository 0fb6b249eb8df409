// For the tests: random 4-bit weights that own their bytes, and memory for the packed form.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "base/check.h"
#include "kernels/packed_linear/packed_matrix.h"

namespace halfbyte {

// Memory at a multiple of 64, filled with a byte that belongs to no packed form.
class PackMemory {
 public:
  explicit PackMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes) + 64, 0xee) {}
  uint8_t* data() {
    return bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
  }

 private:
  std::vector<uint8_t> bytes_;
};

struct FourBitWeights {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  WeightMatrix matrix;

  // Every code, and scale bytes uniform in [first_scale, last_scale].
  FourBitWeights(WeightFormat format, int64_t rows, int64_t columns, uint32_t seed,
                 int first_scale = 0, int last_scale = 0x7e) {
    matrix = {.format = format, .rows = rows, .columns = columns};
    if (format == WeightFormat::kMxfp4) matrix.scale_dtype = DType::kF8E8m0;
    codes.resize(static_cast<size_t>(rows * matrix.row_bytes()));
    scales.resize(static_cast<size_t>(rows * matrix.scale_columns()));
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> byte(0, 255), scale(first_scale, last_scale);
    for (std::byte& b : codes) b = static_cast<std::byte>(byte(random));
    for (std::byte& b : scales) b = static_cast<std::byte>(scale(random));
    matrix.data = codes.data();
    matrix.scales = scales.data();
  }
  FourBitWeights(const FourBitWeights&) = delete;
};

// A packed matrix with its memory; the weights are known to fit.
struct OwnedPacked {
  PackMemory memory;
  PackedMatrix matrix;

  explicit OwnedPacked(const WeightMatrix& w) : memory(PackedBytes(w)) {
    ThreadPool pool(1);
    const auto packed = PackMatrix(pool, w, memory.data(), "test weight");
    HB_CHECK(packed.has_value() && packed->has_value(), "does not fit");
    matrix = **packed;
  }
};

}  // namespace halfbyte
