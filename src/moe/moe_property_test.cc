// Any layer, any routing: the number of threads changes no bit, and the result is the reference's.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>

#include "moe/moe_test_layer.h"

namespace halfbyte {
namespace {

// What can happen to a batch of tokens at the experts.
enum class Pattern : uint8_t {
  kRandom,       // distinct within a token
  kMarkers,      // some slots are -1 or the other marker, E
  kDuplicates,   // within a token too
  kAllToOne,     // every slot
  kFirst128,     // exactly 128 slots go to expert 0
  kFirst129,     // one more
  kSameForAll,   // every token chooses what the first one chooses
  kOneSlot,      // a single slot has an expert
  kNothing,      // no slot has one
  kZeroWeights,  // of some slots
};
constexpr Pattern kPatterns[] = {Pattern::kRandom,     Pattern::kMarkers,  Pattern::kDuplicates,
                                 Pattern::kAllToOne,   Pattern::kFirst128, Pattern::kFirst129,
                                 Pattern::kSameForAll, Pattern::kOneSlot,  Pattern::kNothing,
                                 Pattern::kZeroWeights};

struct Case {
  TestShape shape;
  WeightFormat format = WeightFormat::kNvfp4;
  Arithmetic arithmetic = Arithmetic::kW4a16;
  uint32_t seed = 0;
};

Case AnyCase() {
  Case c;
  c.format = *rc::gen::element(WeightFormat::kNvfp4, WeightFormat::kNvfp4, WeightFormat::kMxfp4,
                               WeightFormat::kBf16, WeightFormat::kFp8);
  const bool four_bit = c.format == WeightFormat::kNvfp4 || c.format == WeightFormat::kMxfp4;
  c.arithmetic = four_bit
                     ? *rc::gen::element(Arithmetic::kW4a16, Arithmetic::kW4a4, Arithmetic::kW4a8)
                     : Arithmetic::kW4a16;
  const int64_t unit = c.format == WeightFormat::kNvfp4 ? 16 : 32;
  c.shape.hidden = unit * *rc::gen::inRange<int64_t>(1, 9);
  c.shape.intermediate = unit * *rc::gen::inRange<int64_t>(1, 7);
  c.shape.experts = *rc::gen::inRange<int64_t>(1, 7);
  c.shape.top_k = *rc::gen::inRange<int64_t>(1, std::min<int64_t>(c.shape.experts, 3) + 1);
  // Enough for 129 slots every second time; the rest is small, 0 and 1 included.
  c.shape.tokens =
      *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, 20), rc::gen::inRange<int64_t>(129, 150));
  c.seed = *rc::gen::arbitrary<uint32_t>();
  return c;
}

void Apply(Pattern pattern, uint32_t seed, TestInput& input) {
  const auto experts = static_cast<int32_t>(input.shape.experts);
  std::vector<int32_t>& ids = input.ids;
  std::mt19937 random(seed);
  const auto first = [&](size_t count) {
    for (size_t s = 0; s < ids.size(); ++s) ids[s] = s < count ? 0 : experts > 1 ? 1 : -1;
    std::shuffle(ids.begin(), ids.end(), random);
  };
  switch (pattern) {
    case Pattern::kRandom:
      break;
    case Pattern::kMarkers:
      for (int32_t& id : ids) {
        if (random() % 3 == 0) id = random() % 2 == 0 ? -1 : experts;
      }
      break;
    case Pattern::kDuplicates:
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % input.shape.experts);
      break;
    case Pattern::kAllToOne:
      std::fill(ids.begin(), ids.end(), experts - 1);
      break;
    case Pattern::kFirst128:
      first(128);
      break;
    case Pattern::kFirst129:
      first(129);
      break;
    case Pattern::kSameForAll:
      for (size_t s = 0; s < ids.size(); ++s) ids[s] = ids[s % input.shape.top_k];
      break;
    case Pattern::kOneSlot:
    case Pattern::kNothing:
      for (size_t s = 0; s < ids.size(); ++s) {
        if (pattern == Pattern::kNothing || s != ids.size() / 2) ids[s] = -1;
      }
      break;
    case Pattern::kZeroWeights:
      for (float& weight : input.weights) {
        if (random() % 2 == 0) weight = 0;
      }
      break;
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// RapidCheck's 100 cases times ten routings.
RC_GTEST_PROP(MoeLayerProperty, AThousandRunsGiveTheSameBitsWithOneAndTwoThreads, ()) {
  const Case c = AnyCase();
  const TestLayer layer(c.shape, c.format, c.seed);
  const MoeParams params = layer.Params(c.arithmetic);
  ThreadPool one(1), two(2);
  const MoeLayer moe = layer.Layer(params);
  MoeWorkspace first(layer.Limits(150)), second(layer.Limits(37));  // the second: in pieces
  for (const Pattern pattern : kPatterns) {
    TestInput input(c.shape, c.seed + 1);
    Apply(pattern, c.seed, input);
    const auto run = [&](ThreadPool& pool, MoeWorkspace& workspace) {
      std::vector<float> out(input.hidden.size(), NAN);
      moe.Run(Context(pool), input.Hidden(), input.Routing(),
              {out.data(), c.shape.tokens, c.shape.hidden}, workspace);
      return out;
    };
    const std::vector<float> alone = run(one, first);
    RC_ASSERT(SameBits(alone, run(two, first)));
    RC_ASSERT(SameBits(alone, run(two, second)));
    const bool small = c.shape.tokens < 20;
    if (small) RC_ASSERT(SameBits(alone, ReferencePipeline(layer, params, input)));
  }
}

}  // namespace
}  // namespace halfbyte
