// Keys in blocks, for the variants of AttendHeads: each key of a long list is brought into the
// cache once for the scores of all heads and once for the sums of their values. The sums wait in
// memory meanwhile, which changes no bit. In an unnamed namespace like softmax_weights.h.
#pragma once

#include "kernels/attention/attention_simd.h"
#include "kernels/attention/softmax_weights.h"

namespace halfbyte::HB_SIMD_NAMESPACE {
namespace {  // NOLINT(google-build-namespaces)

constexpr int64_t kScoreKeys = 16;  // of 512 fp32 numbers: 33 KiB
constexpr int64_t kValueKeys = 64;  // of kSlice numbers: 16 KiB
constexpr int64_t kSlice = 64;      // channels

// The totals of heads [head, ..) in the slice of channel d: [heads, kSlice] for each slice.
inline float* Totals(const HeadArguments& a, int64_t head, int64_t d) {
  return a.totals + (d / kSlice * a.heads + head) * kSlice;
}

// The totals of a head times its share.
inline void WriteMeans(const HeadArguments& a, int64_t head) {
  const F32x16 share = Set16(a.shares[head]);
  float* out = a.out + head * a.dim;
  for (int64_t d = 0; d < a.dim; d += 16) {
    F32x16 mean = Mul(Load16(Totals(a, head, d) + d % kSlice), share);
    if (a.round_to_bf16) mean = RoundBf16(mean);
    if (d + 16 <= a.dim) {
      Store16(out + d, mean);
      continue;
    }
    float rest[16];
    Store16(rest, mean);
    std::memcpy(out + d, rest, static_cast<size_t>(a.dim - d) * sizeof(float));
  }
}

// Calls body.template operator()<Heads>(head) for tiles of Most heads, then for single ones.
template <int Most, class Body>
void ForHeads(int64_t heads, const Body& body) {
  int64_t head = 0;
  for (; head + Most <= heads; head += Most) body.template operator()<Most>(head);
  for (; head < heads; ++head) body.template operator()<1>(head);
}

// Tiles::Score<Heads>(a, head, key, end) writes the scores of keys [key, end), a multiple of 4 but
// for the last; Tiles::PackWeights(count, weights) makes of a head's weights what Add reads;
// Tiles::Add<Heads>(a, head, d, key, end) adds their weighted values in channels
// [d, d + kSlice) to the totals, or makes them the totals if key is 0.
template <class Tiles>
void AttendBlocks(const HeadArguments& a) {
  const auto min = [](int64_t x, int64_t y) { return x < y ? x : y; };
  for (int64_t key = 0; key < a.key_count; key += kScoreKeys) {
    ForHeads<Tiles::kHeads>(a.heads, [&]<int Heads>(int64_t head) {
      Tiles::template Score<Heads>(a, head, key, min(key + kScoreKeys, a.key_count));
    });
  }
  ForHeads<Tiles::kHeads>(a.heads, [&]<int Heads>(int64_t head) {
    WeighKeys<Heads>(a.sinks + head, a.round_to_bf16, a.key_count, a.score_stride(),
                     a.scores + head * a.score_stride(), a.shares + head);
    for (int h = 0; h < Heads; ++h) {
      Tiles::PackWeights(a.key_count, a.scores + (head + h) * a.score_stride());
    }
  });
  for (int64_t key = 0; key < a.key_count; key += kValueKeys) {
    for (int64_t d = 0; d < a.dim; d += kSlice) {
      ForHeads<Tiles::kHeads>(a.heads, [&]<int Heads>(int64_t head) {
        Tiles::template Add<Heads>(a, head, d, key, min(key + kValueKeys, a.key_count));
      });
    }
  }
  for (int64_t head = 0; head < a.heads; ++head) WriteMeans(a, head);
}

}  // namespace
}  // namespace halfbyte::HB_SIMD_NAMESPACE
