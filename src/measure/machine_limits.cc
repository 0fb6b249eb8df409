#include "measure/machine_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <vector>

#include "measure/seconds_since.h"

namespace halfbyte {
namespace {

// One thread reads this much in a row: a single stream each is what memory likes best.
constexpr size_t kReadPiece = size_t{1} << 20;
// About half a millisecond.
constexpr int64_t kPeakRounds = 150'000;
constexpr int64_t kPeakPiecesPerThread = 8;

void Read(MemorySpan memory) {
  constexpr size_t kStep = 256;
  __m256i sums[8] = {};
  const std::byte* data = memory.data();
  for (size_t i = 0; i + kStep <= memory.size(); i += kStep) {
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; ++j) {
      const auto* at = reinterpret_cast<const __m256i*>(data + i + 32 * j);
      sums[j] = _mm256_xor_si256(sums[j], _mm256_loadu_si256(at));
    }
  }
  for (const __m256i& sum : sums) asm volatile("" ::"x"(sum));  // or the loads are dropped
}

}  // namespace

double SecondsToRead(const Context& context, std::span<const MemorySpan> memory) {
  std::vector<MemorySpan> pieces;
  for (const MemorySpan& span : memory) {
    for (size_t begin = 0; begin < span.size(); begin += kReadPiece) {
      pieces.push_back(span.subspan(begin, std::min(kReadPiece, span.size() - begin)));
    }
  }
  const auto start = std::chrono::steady_clock::now();
  context.pool().ParallelFor(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Read(pieces[static_cast<size_t>(i)]);
  });
  return SecondsSince(start);
}

double MeasurePeak(const Context& context, const PeakLoop& loop) {
  const int64_t pieces = kPeakPiecesPerThread * context.pool().threads();
  const auto start = std::chrono::steady_clock::now();
  context.pool().ParallelFor(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      PeakSums sums;
      std::iota(sums.begin(), sums.end(), i);
      loop.run(kPeakRounds, sums);
    }
  });
  const double rounds = static_cast<double>(pieces * kPeakRounds);
  return rounds * loop.operations_per_round / SecondsSince(start);
}

std::string CpuModelName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace halfbyte
