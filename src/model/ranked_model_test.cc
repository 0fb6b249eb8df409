// The bundled model with its experts over ranks (docs/ranks.md).
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "comm/in_process_ranks.h"
#include "model/transformer.h"

namespace halfbyte {
namespace {

const std::filesystem::path kBundled =
    std::filesystem::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4";
const std::vector<int32_t> kPrompt = {1, 17, 250, 33, 8, 99, 410, 5, 5, 72, 300};

// Logits of the prompt's chunk and of three single tokens after it.
Result<std::vector<float>> Logits(TransformerOptions options) {
  ThreadPool pool(1);
  HB_ASSIGN_OR_RETURN(const auto model, Transformer::Load(kBundled, options, Context(pool)));
  HB_ASSIGN_OR_RETURN(const auto cache, model->NewCache({.context_tokens = 64}));
  HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
  std::vector<float> all;
  std::vector<int32_t> tokens = kPrompt;
  for (int32_t step = 0; step < 4; ++step) {
    const BatchItem item{&sequence, tokens, LogitsWanted::kAll};
    HB_ASSIGN_OR_RETURN(const auto logits, model->Forward(*cache, {&item, 1}));
    all.insert(all.end(), logits.data, logits.data + logits.rows * logits.columns);
    tokens = {100 + step};
  }
  return all;
}

TEST(RankedModel, AnyNumberOfRanksAndAnyPlacementGivesTheLogitsOfOne) {  // R51, R54, R55
  struct Case {
    int ranks;
    std::vector<int32_t> owners;
  };
  std::vector<int32_t> scattered(32);
  for (size_t e = 0; e < scattered.size(); ++e) scattered[e] = static_cast<int32_t>(e * e % 3);
  for (const Arithmetic arithmetic : {Arithmetic::kW4a16, Arithmetic::kW4a4, Arithmetic::kW4a8}) {
    const auto expected = Logits({.arithmetic = arithmetic, .batch_tokens = 16});
    ASSERT_TRUE(expected.has_value()) << expected.error().message;
    for (const Case& c : {Case{2, {}}, Case{3, {}}, Case{3, scattered}}) {
      auto ranks = InProcessRanks(c.ranks);
      std::vector<std::thread> threads;
      for (auto& rank : ranks) {
        threads.emplace_back([&, mine = std::move(rank)] {
          const auto logits = Logits({.arithmetic = arithmetic,
                                      .batch_tokens = 16,
                                      .communicator = mine.get(),
                                      .expert_owners = c.owners});
          ASSERT_TRUE(logits.has_value()) << logits.error().message;
          ASSERT_EQ(logits->size(), expected->size());
          EXPECT_EQ(std::memcmp(logits->data(), expected->data(), expected->size() * sizeof(float)),
                    0)
              << ArithmeticName(arithmetic) << ", rank " << mine->rank() << " of " << c.ranks;
          mine->Leave(true);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

TEST(RankedModel, ATableForAnotherNumberOfExpertsIsRefused) {
  const auto ranks = InProcessRanks(1);
  const auto logits = Logits({.communicator = ranks.front().get(), .expert_owners = {0, 0}});
  ASSERT_FALSE(logits.has_value());
  EXPECT_EQ(logits.error().message, "a placement of 2 experts for a model with 32");
  const auto negative =
      Logits({.communicator = ranks.front().get(), .expert_owners = std::vector<int32_t>(32, 1)});
  ASSERT_FALSE(negative.has_value());
  EXPECT_EQ(negative.error().message, "expert placement: expert 0 has owner 1, outside 0..0");
}

}  // namespace
}  // namespace halfbyte
