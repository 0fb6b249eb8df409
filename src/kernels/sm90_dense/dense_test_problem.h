// For tests on a GPU: random weights as a checkpoint stores them, packed; and random x.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/sm90_dense/sm90_dense.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"

namespace halfbyte::sm90 {

// Fast, and with all bits good.
class RandomBits {
 public:
  explicit RandomBits(uint64_t seed) : state_(seed) {}
  uint64_t operator()() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Of mean 0 and variance 1, nearly normal.
  float Normal() {
    const uint64_t bits = (*this)();
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>(bits >> (16 * i) & 0xffff);
    return (static_cast<float>(sum) - 131070.0f) * (1.0f / 37837.0f);
  }

 private:
  uint64_t state_;
};

struct WeightShape {
  const char* name;
  DenseFormat format;
  int64_t rows;
  int64_t columns;
  int64_t groups = 1;
};

inline std::vector<Bf16> RandomRows(int64_t count, uint64_t seed) {
  RandomBits random(seed);
  std::vector<Bf16> numbers(static_cast<size_t>(count));
  for (Bf16& n : numbers) n = ToBf16(random.Normal());
  return numbers;
}

// A weight as stored, in host memory: normal numbers; as FP8 with scales 2^-12, 2^-11, 2^-10.
struct StoredBytes {
  std::vector<uint8_t> data, scales;

  StoredBytes(const WeightShape& shape, uint64_t seed) {
    RandomBits random(seed);
    const auto count = static_cast<size_t>(shape.rows * shape.columns);
    if (shape.format == DenseFormat::kFp8) {
      std::vector<uint8_t> codes(4096);
      for (uint8_t& code : codes) code = E4m3FromFloat(random.Normal() * 100);
      data.resize(count);
      for (size_t i = 0; i < count; i += 4) {
        const uint64_t bits = random();
        for (size_t j = 0; j < 4; ++j) data[i + j] = codes[bits >> (12 * j) & 4095];
      }
      scales.resize(static_cast<size_t>((shape.rows + 127) / 128 * ((shape.columns + 127) / 128)));
      for (uint8_t& scale : scales) scale = static_cast<uint8_t>(127 - 12 + random() % 3);
    } else if (shape.format == DenseFormat::kBf16) {
      data.resize(count * 2);
      for (size_t i = 0; i < count; ++i) {
        const Bf16 value = ToBf16(random.Normal() * 0.02f);
        std::memcpy(&data[2 * i], &value, 2);
      }
    } else {
      data.resize(count * 4);
      for (size_t i = 0; i < count; ++i) {
        const float value = random.Normal() * 0.02f;
        std::memcpy(&data[4 * i], &value, 4);
      }
    }
  }
};

// The same in device memory, and packed.
class PackedProblem {
 public:
  PackedProblem(const WeightShape& shape, const StoredBytes& bytes)
      : data_(bytes.data),
        scales_(bytes.scales),
        packed_(static_cast<size_t>(
            PackedBytes(shape.format, shape.rows, shape.columns, shape.groups))) {
    stored = {.format = shape.format,
              .rows = shape.rows,
              .columns = shape.columns,
              .groups = shape.groups,
              .data = reinterpret_cast<const std::byte*>(data_.data()),
              .scales = reinterpret_cast<const std::byte*>(scales_.data()),
              .scale = shape.format == DenseFormat::kFp8 ? DenseScale::kE8m0 : DenseScale::kNone};
    weight = {shape.format, shape.rows, shape.columns, shape.groups, packed()};
  }
  PackedProblem(const WeightShape& shape, uint64_t seed)
      : PackedProblem(shape, StoredBytes(shape, seed)) {}

  std::byte* packed() const { return reinterpret_cast<std::byte*>(packed_.data()); }
  std::vector<uint8_t> ReadPacked() { return packed_.Read(); }

  StoredDense stored;
  DenseWeight weight;

 private:
  DeviceArray<uint8_t> data_, scales_, packed_;
};

}  // namespace halfbyte::sm90
