#include "model/head_shares.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "checkpoint/checkpoint_test_files.h"

namespace halfbyte {
namespace {

constexpr int64_t kVocabulary = 1000;
constexpr int64_t kHidden = 64;
constexpr int64_t kRows[] = {2, 0, 5, 1};  // of the shares

// A head, rows for it, and their logits as Projection::Forward gives them.
class Fixture {
 public:
  explicit Fixture(bool packed) {
    Json config = test::TinyConfig();
    config["vocab_size"] = kVocabulary;
    test::WriteModel(dir_.path(), config, test::TinyModel(config, {.mtp = false}));
    checkpoint_.emplace(*ModelCheckpoint::Open(dir_.path()));
    const WeightLoader loader(*checkpoint_, packed ? &one_ : nullptr);
    head_ = *Projection::Load(loader, ModuleKey::Global(Module::kHead), kVocabulary, kHidden);
    x_.resize(static_cast<size_t>(rows_ * kHidden));
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(i * i % 17) - 8;
    expected_.resize(static_cast<size_t>(rows_ * kVocabulary));
    Arena arena;
    const Step step{.context = &context_, .arena = &arena};
    head_.Forward(step, {x_.data(), rows_, kHidden}, {expected_.data(), rows_, kVocabulary});
  }

  const Projection& head() const { return head_; }
  const std::vector<float>& expected() const { return expected_; }

  // What the share's thread does; `arena` outlives all of them.
  void RunShare(HeadShares& shares, size_t share, Arena& arena, std::vector<float>& logits) const {
    const int64_t first = std::reduce(kRows, kRows + share);
    const int64_t rows = kRows[share];
    const Step step{.context = &context_, .arena = &arena};
    const auto x = head_.Prepare(step, {x_.data() + first * kHidden, rows, kHidden});
    shares.Finish(context_, share, x, {logits.data() + first * kVocabulary, rows, kVocabulary});
  }

 private:
  const int64_t rows_ = std::reduce(std::begin(kRows), std::end(kRows));
  test::TempDir dir_;
  ThreadPool one_{1};
  const Context context_{one_};
  std::optional<ModelCheckpoint> checkpoint_;
  Projection head_;
  std::vector<float> x_, expected_;
};

TEST(HeadShares, GiveTheSameLogitsWhicheverThreadIsLate) {
  std::mt19937 random(1);
  for (const bool packed : {true, false}) {
    const Fixture fixture(packed);
    for (int round = 0; round < 30; ++round) {
      HeadShares shares(fixture.head(), std::size(kRows));
      std::vector<float> logits(fixture.expected().size(), NAN);
      std::deque<Arena> arenas(std::size(kRows));
      std::vector<std::thread> threads;
      for (size_t i = 0; i < std::size(kRows); ++i) {
        const std::chrono::microseconds late(random() % 400), busy(random() % 400);
        threads.emplace_back([&, i, late, busy] {
          std::this_thread::sleep_for(late);
          shares.Begin(i);
          std::this_thread::sleep_for(busy);
          fixture.RunShare(shares, i, arenas[i], logits);
        });
      }
      for (std::thread& thread : threads) thread.join();
      ASSERT_EQ(logits, fixture.expected()) << packed << ' ' << round;
    }
  }
}

TEST(HeadShares, DoNotWaitForAShareThatTheThreadItselfHasToBegin) {
  const Fixture fixture(/*packed=*/true);
  HeadShares shares(fixture.head(), std::size(kRows));
  std::vector<float> logits(fixture.expected().size(), NAN);
  std::deque<Arena> arenas(std::size(kRows));
  for (size_t i = 0; i < std::size(kRows); ++i) {
    shares.Begin(i);
    fixture.RunShare(shares, i, arenas[i], logits);
  }
  EXPECT_EQ(logits, fixture.expected());
}

}  // namespace
}  // namespace halfbyte
