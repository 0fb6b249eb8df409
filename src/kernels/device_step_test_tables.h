// For tests of kernels over a step's tables (device_step.h): a ragged batch on either side.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/device_step.h"
#include "kernels/kv_row/kv_row.h"
#include "kernels/rope/rope.h"
#include "kernels/token_span.h"

namespace halfbyte {

struct TestSequence {
  int64_t position = 0;  // of its first token
  int64_t count = 0;
  int32_t slot = 0;
  int64_t replay_end = 0;
  std::vector<int32_t> pages;  // of whichever rows the test stores
};

// The sequences' tokens one after another, then padding.
class TestStep {
 public:
  TestStep(const std::vector<TestSequence>& sequences, int64_t padding)
      : TestStep(Tables(sequences, padding)) {}

  const std::vector<TokenSpan>& spans() const { return tables_.spans; }
  int64_t count() const { return std::ssize(tables_.positions); }
  DeviceTokens tokens() const {
    return {.count = count(), .positions = positions_.data(), .sequences = of_tokens_.data()};
  }
  // The pages are those of both pools.
  DeviceSequences sequences() const {
    return {.count = std::ssize(tables_.spans),
            .first_rows = first_rows_.data(),
            .tokens = counts_.data(),
            .first_positions = first_positions_.data(),
            .slots = slots_.data(),
            .replay_starts = replay_ends_.data(),
            .replay_ends = replay_ends_.data(),
            .context_blocks = pages_.data(),
            .context_stride = tables_.stride,
            .window_pages = pages_.data(),
            .window_stride = tables_.stride};
  }

 private:
  struct Tables {
    Tables(const std::vector<TestSequence>& sequences, int64_t padding) {
      for (const TestSequence& s : sequences) {
        stride = std::max(stride, std::ssize(s.pages));
      }
      for (const TestSequence& s : sequences) {
        const auto index = static_cast<int32_t>(spans.size());
        spans.push_back({std::ssize(positions), s.count, s.position});
        first_rows.push_back(static_cast<int32_t>(positions.size()));
        counts.push_back(static_cast<int32_t>(s.count));
        first_positions.push_back(static_cast<int32_t>(s.position));
        slots.push_back(s.slot);
        replay_ends.push_back(static_cast<int32_t>(s.replay_end));
        pages.insert(pages.end(), s.pages.begin(), s.pages.end());
        pages.resize(static_cast<size_t>((index + 1) * stride), -1);
        for (int64_t i = 0; i < s.count; ++i) {
          positions.push_back(static_cast<int32_t>(s.position + i));
          of_tokens.push_back(index);
        }
      }
      positions.resize(positions.size() + static_cast<size_t>(padding), -1);
      of_tokens.resize(positions.size(), 0);
    }
    std::vector<TokenSpan> spans;
    std::vector<int32_t> positions, of_tokens, first_rows, counts, first_positions, slots,
        replay_ends, pages;
    int64_t stride = 0;
  };
  explicit TestStep(const Tables& tables)
      : tables_(tables),
        positions_(tables.positions),
        of_tokens_(tables.of_tokens),
        first_rows_(tables.first_rows),
        counts_(tables.counts),
        first_positions_(tables.first_positions),
        slots_(tables.slots),
        replay_ends_(tables.replay_ends),
        pages_(tables.pages) {}

  const Tables tables_;
  DeviceArray<int32_t> positions_, of_tokens_, first_rows_, counts_, first_positions_, slots_,
      replay_ends_, pages_;
};

// Angles of all positions below `positions`.
struct TestRope {
  TestRope(int64_t dims, int64_t positions)
      : frequencies(RopeFrequencies(10000, dims, {})),
        angles(Angles(frequencies, positions)),
        cos(angles.cos),
        sin(angles.sin) {}
  DeviceRope device() const { return {cos.data(), sin.data(), angles.pairs}; }

  std::vector<double> frequencies;
  RopeAngles angles;
  DeviceArray<float> cos, sin;

 private:
  static RopeAngles Angles(const std::vector<double>& frequencies, int64_t positions) {
    std::vector<int64_t> all(static_cast<size_t>(positions));
    for (int64_t p = 0; p < positions; ++p) all[static_cast<size_t>(p)] = p;
    RopeAngles made;
    made.Set(frequencies, all);
    return made;
  }
};

// Pages of whole rows as the host has them, in the two parts that the device has. Where the host
// pads a row's scales the device keeps what was there.
inline std::vector<std::byte> InTwoParts(const std::vector<std::byte>& pool, const DeviceRows& rows,
                                         int64_t scale_count) {
  const int64_t row_bytes = rows.main_bytes + rows.scale_bytes;
  std::vector<std::byte> parts(pool.size(), std::byte{0xff});
  for (int64_t i = 0; i < std::ssize(pool) / row_bytes; ++i) {
    const int64_t page = i / rows.rows_per_page, row = i % rows.rows_per_page;
    const auto from = pool.begin() + i * row_bytes;
    const auto to = parts.begin() + page * rows.page_bytes();
    std::copy_n(from, rows.main_bytes, to + row * rows.main_bytes);
    std::copy_n(from + rows.main_bytes, scale_count,
                to + rows.rows_per_page * rows.main_bytes + row * rows.scale_bytes);
  }
  return parts;
}

}  // namespace halfbyte
