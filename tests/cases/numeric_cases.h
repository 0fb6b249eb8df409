// tests/data/cases/numeric.json: numbers that other runtimes got wrong, each with the right answer.
// Every operation of the file has a handler that calls halfbyte's own code, one file for each part
// of the house.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"

namespace halfbyte {

// Checks one case with EXPECT_*; the harness adds the case's id to failures.
using CaseHandler = void (*)(const Json& inputs, const Json& expected);
using CaseHandlers = std::map<std::string, CaseHandler>;

void AddFormatCases(CaseHandlers& handlers);  // numerics, kernels/quantize_nvfp4
void AddLayoutCases(CaseHandlers& handlers);  // tensor
void AddMoeCases(CaseHandlers& handlers);     // moe, kernels/linear, kernels/swiglu
void AddModelCases(CaseHandlers& handlers);   // kernels of attention and its surroundings

// One thread, for every case.
inline ThreadPool& Pool() {
  static ThreadPool pool(1);
  return pool;
}

inline double NumberOf(const Json& value) {
  return value == "nan" ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}
inline float FloatOf(const Json& value) { return static_cast<float>(NumberOf(value)); }
// "0x7e", "0x3f800000"
inline uint32_t HexOf(const Json& value) {
  return static_cast<uint32_t>(std::stoul(value.get<std::string>(), nullptr, 16));
}
inline uint8_t ByteOf(const Json& value) { return static_cast<uint8_t>(HexOf(value)); }
inline float FloatFromBits(const Json& value) { return std::bit_cast<float>(HexOf(value)); }
inline std::vector<float> FloatsOf(const Json& values) {
  std::vector<float> floats;
  for (const Json& value : values) floats.push_back(FloatOf(value));
  return floats;
}
inline std::vector<int64_t> IntsOf(const Json& values) {
  return values.get<std::vector<int64_t>>();
}
// "21 43" without 0x
inline std::vector<uint8_t> BytesOf(const Json& value) {
  std::vector<uint8_t> bytes;
  const auto text = value.get<std::string>();
  for (size_t i = 0; i + 1 < text.size(); i += 3) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

inline void ExpectRelative(double actual, double expected, double tolerance) {
  if (expected == 0) {
    EXPECT_EQ(actual, 0);
  } else {
    EXPECT_LE(std::abs(actual - expected), tolerance * std::abs(expected))
        << actual << " instead of " << expected;
  }
}
inline void ExpectWithinOneStep(float actual, const Json& expected) {
  const float wanted = FloatOf(expected);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_GE(actual, std::nextafter(wanted, -kInfinity));
  EXPECT_LE(actual, std::nextafter(wanted, kInfinity));
}

}  // namespace halfbyte
