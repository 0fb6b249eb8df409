// The scheduler with the fake executor in memory mode: whatever the schedule, every token is the
// one that a lone sequence would draw, and no page is left behind.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "engine/fake_executor.h"
#include "sampling/sampler.h"

namespace halfbyte {
namespace {

struct Sizes {
  int64_t max_sequences = 4;
  int64_t batch_tokens = 160;
  int64_t context_blocks = 16;
  int64_t snapshots = 4;
  int64_t replay_tokens = FakeExecutor::ReplayTokens(128);
  int64_t max_model_len = 2048;
  bool prefix_cache = true;
  bool token_0_ends = true;
};

ExecutorLimits LimitsOf(const Sizes& sizes) {
  return {.pools = {.context_blocks = sizes.context_blocks,
                    .window_pages = KvPoolSizes::WindowPages(
                        sizes.max_sequences, sizes.batch_tokens, sizes.snapshots, 128),
                    .state_slots = sizes.max_sequences,
                    .tails = sizes.snapshots},
          .window = 128,
          .replay_tokens = sizes.replay_tokens,
          .batch_tokens = sizes.batch_tokens,
          .max_model_len = sizes.max_model_len,
          .vocabulary = 50};
}

// Runs requests to their ends and keeps what they drew.
class Driver {
 public:
  struct Output {
    std::vector<int32_t> prompt;
    int64_t max_tokens = 0;
    std::map<int32_t, std::vector<int32_t>> drawn;  // by choice
    int64_t unfinished = 0;
    bool cancelled = false;
  };

  explicit Driver(const Sizes& sizes)
      : sizes_(sizes),
        limits_(LimitsOf(sizes)),
        fake_({.limits = limits_,
               .nan_row = [this](SequenceId id) { return broken_.contains(id.request); }}),
        scheduler_(*Scheduler::Create(
            limits_, {sizes.max_sequences, sizes.batch_tokens, sizes.prefix_cache})) {}

  RequestId Add(std::vector<int32_t> prompt, int64_t max_tokens, int32_t n = 1,
                ClientId client = 0) {
    const RequestId id = ++last_id_;
    outputs_[id] = {prompt, max_tokens, {}, n, false};
    scheduler_->Add({.id = id, .client = client, .prompt = std::move(prompt), .n = n});
    return id;
  }

  void Cancel(RequestId id) {
    EXPECT_EQ(scheduler_->Cancel(id), outputs_.at(id).unfinished > 0 && !outputs_.at(id).cancelled);
    outputs_.at(id).cancelled = true;
  }

  // From now on its logits are NaN.
  void Break(RequestId id) { broken_.insert(id); }

  // False if there was nothing to do.
  bool Step() {
    const StepPlan plan = scheduler_->Next();
    if (plan.empty()) return false;
    last_plan_ = ToString(plan);
    EXPECT_LE(plan.tokens(), sizes_.batch_tokens);
    EXPECT_LE(std::ssize(plan.items), sizes_.max_sequences);
    const auto logits = fake_.Run(plan);
    if (!logits) {
      ADD_FAILURE() << logits.error().message << "\n" << last_plan_;
      return false;
    }
    StepResult result;
    int64_t row = 0;
    for (const PlanItem& item : plan.items) {
      row += item.logits_rows();
      if (item.pages->position < item.pages->replay_end) {
        replayed_tokens_ += std::ssize(item.tokens);
      }
      for (const int32_t choice : item.drawing_choices) {
        result.push_back(Draw({item.sequence.request, choice}, logits->row(row - 1)));
      }
    }
    scheduler_->Advance(result);
    ++steps_;
    return true;
  }

  // Each token is what the logits of the prefix alone give. Some tokens are enough: each depends on
  // all before it.
  void ExpectAsAlone(std::mt19937& random) const {
    for (const auto& [id, output] : outputs_) {
      for (const auto& [choice, drawn] : output.drawn) {
        for (int i = 0; i < 2 && !drawn.empty(); ++i) {
          const size_t at = i == 0 ? drawn.size() - 1 : random() % drawn.size();
          std::vector<int32_t> tokens = output.prompt;
          tokens.insert(tokens.end(), drawn.begin(), drawn.begin() + static_cast<int64_t>(at));
          ASSERT_EQ(drawn[at], Sampled(id, choice, at, FakeExecutor::LogitsAfter(tokens, limits_)))
              << "token " << at << " of " << id << "." << choice << " after "
              << output.prompt.size();
        }
      }
    }
  }

  void ExpectNothingLeft() {
    for (const auto& [id, output] : outputs_) {
      EXPECT_TRUE(output.cancelled || output.unfinished == 0) << "request " << id;
    }
    scheduler_->ClearPrefixCache();
    const SchedulerCounts counts = scheduler_->Counts();
    EXPECT_EQ(counts.pool_used, KvPoolSizes());
    EXPECT_EQ(counts.waiting + counts.running, 0);
  }

  Scheduler& scheduler() { return *scheduler_; }
  FakeExecutor& fake() { return fake_; }
  const std::map<RequestId, Output>& outputs() const { return outputs_; }
  int64_t steps() const { return steps_; }
  int64_t failures() const { return failures_; }  // of choices, for NaN
  int64_t replayed_tokens() const { return replayed_tokens_; }
  const std::string& last_plan() const { return last_plan_; }

 private:
  static int32_t Sampled(RequestId id, int32_t choice, size_t output,
                         std::span<const float> logits) {
    return *Sample(logits, {.seed = static_cast<uint64_t>(id)}, static_cast<uint32_t>(output),
                   static_cast<uint32_t>(choice));
  }

  DrawnToken Draw(SequenceId id, const float* row) {
    Output& output = outputs_.at(id.request);
    std::vector<int32_t>& drawn = output.drawn[id.choice];
    EXPECT_FALSE(output.cancelled);
    if (std::isnan(row[0])) {
      --output.unfinished;
      ++failures_;
      return {.sequence = id, .finished = true};
    }
    drawn.push_back(Sampled(id.request, id.choice, drawn.size(),
                            {row, static_cast<size_t>(limits_.vocabulary)}));
    const bool finished =
        std::ssize(drawn) == output.max_tokens || (sizes_.token_0_ends && drawn.back() == 0);
    EXPECT_LE(std::ssize(drawn), output.max_tokens);
    output.unfinished -= finished ? 1 : 0;
    return {id, drawn.back(), finished};
  }

  const Sizes sizes_;
  const ExecutorLimits limits_;
  std::set<RequestId> broken_;
  FakeExecutor fake_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, Output> outputs_;
  RequestId last_id_ = 0;
  int64_t steps_ = 0;
  int64_t failures_ = 0;
  int64_t replayed_tokens_ = 0;
  std::string last_plan_;
};

std::vector<int32_t> Prompt(int64_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<int32_t>(random() % 50));
  return prompt;
}

// The first `shared` tokens of one text, then tokens of its own.
std::vector<int32_t> BranchingPrompt(int64_t shared, int64_t tokens, uint32_t seed) {
  std::vector<int32_t> prompt = Prompt(shared, 1);
  const std::vector<int32_t> own = Prompt(tokens, seed);
  prompt.insert(prompt.end(), own.begin(), own.end());
  return prompt;
}

class RandomSchedules : public testing::TestWithParam<int> {};

TEST_P(RandomSchedules, LoseNoTokenAndNoPage) {
  int64_t preemptions = 0, hits = 0, forks = 0, failures = 0, replayed = 0, steps = 0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint32_t kSeeds = 100;  // two minutes otherwise
#else
  constexpr uint32_t kSeeds = 300;
#endif
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    std::mt19937 random(seed * 1000 + static_cast<uint32_t>(GetParam()));
    const auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    Sizes sizes;
    sizes.max_sequences = pick(1, 6);
    sizes.batch_tokens = sizes.max_sequences + pick(128, 400);
    sizes.context_blocks = pick(3, 12);
    sizes.snapshots = pick(0, 5);
    sizes.max_model_len = sizes.context_blocks * 256 - pick(0, 100);
    sizes.prefix_cache = random() % 8 != 0;
    sizes.token_0_ends = random() % 2 == 0;
    Driver driver(sizes);
    const int64_t requests = pick(1, 12);
    const int64_t clients = pick(1, 3);
    std::vector<RequestId> ids;
    for (int64_t i = 0; i < 100000; ++i) {
      if (std::ssize(ids) < requests && (random() % 4 == 0 || i > 200)) {
        const int64_t shared = random() % 3 == 0 ? 0 : pick(1, 3) * 256 - pick(0, 2);
        const int64_t most = sizes.max_model_len - 1;
        std::vector<int32_t> prompt =
            BranchingPrompt(shared, pick(1, 300), static_cast<uint32_t>(pick(1, 4)));
        if (std::ssize(prompt) > most) prompt.resize(static_cast<size_t>(most));
        const int64_t room = sizes.max_model_len - std::ssize(prompt);
        const auto n = static_cast<int32_t>(random() % 4 == 0 ? pick(2, 4) : 1);
        forks += n > 1 ? 1 : 0;
        const auto client = static_cast<ClientId>(pick(1, clients));
        ids.push_back(driver.Add(prompt, std::min(room, pick(1, 150)), n, client));
      }
      if (!ids.empty() && random() % 60 == 0) {
        driver.Cancel(ids[random() % ids.size()]);
      }
      if (!ids.empty() && random() % 200 == 0) driver.Break(ids[random() % ids.size()]);
      if (!driver.Step() && std::ssize(ids) == requests) break;
      if (HasFailure()) break;
    }
    driver.ExpectAsAlone(random);
    const SchedulerCounts counts = driver.scheduler().Counts();
    preemptions += counts.preemptions;
    hits += counts.cache_hit_tokens;
    failures += driver.failures();
    replayed += driver.replayed_tokens();
    steps += driver.steps();
    driver.ExpectNothingLeft();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", after " << driver.last_plan();
  }
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(hits, 50 * 256);
  EXPECT_GT(forks, 50);
  EXPECT_GT(failures, 20);
  EXPECT_GT(replayed, 20 * 254);
  RecordProperty("steps", std::to_string(steps));
}

INSTANTIATE_TEST_SUITE_P(Scheduler, RandomSchedules, testing::Range(0, 7));

TEST(Scheduler, TheOldestIsNeverPreempted) {
  Sizes sizes{
      .max_sequences = 3, .context_blocks = 4, .max_model_len = 1024, .token_0_ends = false};
  Driver driver(sizes);
  const RequestId oldest = driver.Add(Prompt(200, 5), 800);
  driver.Add(Prompt(200, 6), 300);
  driver.Add(Prompt(200, 7), 300);
  while (driver.Step()) {
    if (driver.outputs().at(oldest).unfinished > 0) {
      EXPECT_EQ(driver.scheduler().CountsOf(oldest).preemptions, 0);
    }
  }
  EXPECT_GT(driver.scheduler().Counts().preemptions, 0);
  driver.ExpectNothingLeft();
}

TEST(Scheduler, AClientThatTakesAllSlotsGivesSomeToOneThatComes) {
  Driver driver({.max_sequences = 4, .context_blocks = 40, .token_0_ends = false});
  std::mt19937 random(1);
  const RequestId greedy = driver.Add(Prompt(30, 5), 600, /*n=*/8, /*client=*/1);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(driver.Step());
  const RequestId first = driver.Add(Prompt(20, 6), 50, 1, /*client=*/2);
  const RequestId second = driver.Add(Prompt(20, 7), 50, 1, /*client=*/2);
  const RequestId third = driver.Add(Prompt(20, 8), 50, 1, /*client=*/2);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(driver.Step());
  // Half of the slots; the third one waits for the client's own.
  EXPECT_EQ(driver.outputs().at(first).unfinished, 0);
  EXPECT_EQ(driver.outputs().at(second).unfinished, 0);
  EXPECT_TRUE(driver.outputs().at(third).drawn.empty());
  EXPECT_EQ(driver.outputs().at(greedy).drawn.at(0).size(), 60) << "its oldest goes on";
  EXPECT_EQ(driver.scheduler().Counts().preemptions, 2) << "and nobody changes places for nothing";
  while (driver.Step()) continue;
  driver.ExpectAsAlone(random);
  driver.ExpectNothingLeft();
}

TEST(Scheduler, AShortPromptDoesNotWaitForALongOneOfAnotherClient) {
  Driver driver(
      {.max_sequences = 4, .batch_tokens = 132, .context_blocks = 40, .max_model_len = 8192});
  driver.Add(Prompt(8000, 8), 3, 1, /*client=*/1);
  driver.Add(Prompt(8000, 9), 3, 1, /*client=*/1);
  ASSERT_TRUE(driver.Step());
  const RequestId own = driver.Add(Prompt(50, 10), 3, 1, /*client=*/1);
  const RequestId other = driver.Add(Prompt(50, 11), 3, 1, /*client=*/2);
  ASSERT_TRUE(driver.Step());
  EXPECT_EQ(driver.outputs().at(other).drawn.size(), 1);
  EXPECT_TRUE(driver.outputs().at(own).drawn.empty());
  EXPECT_NE(driver.last_plan().find("132 tokens"), std::string::npos) << driver.last_plan();
}

TEST(Scheduler, ManyClientsWithPromptsShareAStep) {
  Driver driver(
      {.max_sequences = 8, .batch_tokens = 136, .context_blocks = 64, .max_model_len = 2000});
  std::vector<RequestId> ids;
  for (ClientId client = 1; client <= 8; ++client) {
    ids.push_back(driver.Add(Prompt(1000, static_cast<uint32_t>(client)), 1, 1, client));
  }
  for (int i = 0; i < 59; ++i) ASSERT_TRUE(driver.Step());  // 8,000 tokens
  for (const RequestId id : ids) EXPECT_EQ(driver.outputs().at(id).unfinished, 0) << id;
}

TEST(Scheduler, AClientThatHoldsAllMemoryGivesSomeToOneThatComes) {
  Driver driver({.max_sequences = 6,
                 .context_blocks = 8,
                 .max_model_len = 2048,
                 .prefix_cache = false,
                 .token_0_ends = false});
  std::mt19937 random(1);
  const RequestId oldest = driver.Add(Prompt(500, 5), 200, 1, /*client=*/1);
  for (uint32_t i = 0; i < 3; ++i) driver.Add(Prompt(500, 6 + i), 200, 1, /*client=*/1);
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(driver.Step());
  ASSERT_EQ(driver.scheduler().Counts().pool_used.context_blocks, 8);
  const RequestId other = driver.Add(Prompt(300, 11), 20, 1, /*client=*/2);
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(driver.Step());
  EXPECT_EQ(driver.outputs().at(other).unfinished, 0);
  EXPECT_EQ(driver.scheduler().CountsOf(oldest).preemptions, 0);
  while (driver.Step()) continue;
  driver.ExpectAsAlone(random);
  driver.ExpectNothingLeft();
}

TEST(Scheduler, NobodyOvertakesTheHeadOfTheQueue) {
  Sizes sizes{.max_sequences = 3, .context_blocks = 4, .max_model_len = 1024};
  Driver driver(sizes);
  driver.Add(Prompt(600, 5), 40);                         // three blocks
  const RequestId large = driver.Add(Prompt(700, 6), 2);  // three more: must wait
  const RequestId small = driver.Add(Prompt(20, 7), 2);   // would fit
  const auto admitted = [&](RequestId id) {
    return driver.outputs().at(id).unfinished == 0 || driver.scheduler().CountsOf(id).admitted;
  };
  ASSERT_TRUE(driver.Step());
  EXPECT_FALSE(admitted(large));
  while (driver.Step()) {
    EXPECT_TRUE(admitted(large) || !admitted(small));
  }
  driver.ExpectNothingLeft();
}

TEST(Scheduler, EveryDecodingSequenceGetsATokenInEveryStep) {
  Sizes sizes{.max_sequences = 4, .batch_tokens = 132, .context_blocks = 40};
  Driver driver(sizes);
  const RequestId first = driver.Add(Prompt(20, 9), 60);
  while (driver.outputs().at(first).drawn.empty()) ASSERT_TRUE(driver.Step());
  driver.Add(Prompt(1900, 8), 3);  // fills whole steps with its prompt
  while (driver.outputs().at(first).unfinished > 0) {
    const size_t before = driver.outputs().at(first).drawn.at(0).size();
    ASSERT_TRUE(driver.Step());
    EXPECT_EQ(driver.outputs().at(first).drawn.at(0).size(), before + 1);
  }
}

TEST(Scheduler, ARepeatedPromptIsFoundUpToItsLastFullBlock) {
  for (const int64_t tokens : {1, 3, 4, 127, 128, 129, 255, 256, 257, 511, 512, 513, 700}) {
    Driver driver({.context_blocks = 20});
    std::mt19937 random(1);
    int64_t cached = 0;
    for (int i = 0; i < 3; ++i) {
      const RequestId id = driver.Add(Prompt(tokens, 3), 5);
      ASSERT_TRUE(driver.Step());
      cached = driver.scheduler().CountsOf(id).cached_tokens;
      while (driver.Step()) continue;
    }
    // At a multiple of 256 the last full block ends the prompt: the third request finds the
    // snapshot that the second one took where the blocks branched.
    EXPECT_EQ(cached, (tokens - 1) / 256 * 256) << tokens;
    driver.ExpectAsAlone(random);
    driver.ExpectNothingLeft();
  }
}

TEST(Scheduler, AMissingSnapshotIsReplayedOverItsBlocks) {
  for (const int64_t tokens : {512, 513, 700, 1023, 1024, 1100}) {
    Driver driver({.context_blocks = 20, .max_model_len = 3000});
    std::mt19937 random(1);
    driver.Add(BranchingPrompt(1100, 700, 8), 5);  // its only snapshot is at 1,792
    while (driver.Step()) continue;
    const RequestId id = driver.Add(BranchingPrompt(tokens, 0, 8), 5);
    ASSERT_TRUE(driver.Step());
    const int64_t blocks = (tokens - 1) / 256 * 256;
    EXPECT_EQ(driver.scheduler().CountsOf(id).cached_tokens, blocks - 254);
    while (driver.Step()) continue;
    EXPECT_EQ(driver.replayed_tokens(), 254);
    // The replay left a snapshot at its end: the next one hits.
    const RequestId next = driver.Add(BranchingPrompt(tokens, 0, 8), 5);
    ASSERT_TRUE(driver.Step());
    EXPECT_EQ(driver.scheduler().CountsOf(next).cached_tokens, blocks);
    while (driver.Step()) continue;
    EXPECT_EQ(driver.replayed_tokens(), 254);
    EXPECT_EQ(driver.outputs().at(id).drawn.at(0).size(), 5);
    driver.ExpectAsAlone(random);
    driver.ExpectNothingLeft();
  }
}

TEST(Scheduler, AReplayThatIsATokenShortIsNoticed) {
  const auto drawn = [](int64_t replay_tokens, bool prefix_cache) {
    Driver driver({.context_blocks = 20,
                   .replay_tokens = replay_tokens,
                   .prefix_cache = prefix_cache,
                   .token_0_ends = false});
    driver.Add(BranchingPrompt(1100, 700, 8), 2);
    while (driver.Step()) continue;
    // The query right after the replay is the one that reaches back the farthest.
    const RequestId id = driver.Add(BranchingPrompt(769, 0, 8), 20);
    while (driver.Step()) continue;
    return driver.outputs().at(id).drawn.at(0);
  };
  const std::vector<int32_t> cold = drawn(254, false);
  EXPECT_EQ(drawn(254, true), cold);
  EXPECT_NE(drawn(253, true), cold);
}

// A snapshot there would be one of windows that are not exact yet.
TEST(Scheduler, AReplayLeavesNoSnapshotBeforeItsEnd) {
  Driver driver({.batch_tokens = 836,  // twice from 2,424 on is 4,096
                 .context_blocks = 64,
                 .snapshots = 1,
                 .replay_tokens = 5000,
                 .max_model_len = 8192});
  std::mt19937 random(1);
  driver.Add(BranchingPrompt(7500, 400, 8), 2);  // of 4,096 and 7,680 it keeps the second
  while (driver.Step()) continue;
  for (const int64_t cached : {7424 - 5000, 7424}) {
    const RequestId id = driver.Add(BranchingPrompt(7425, 0, 8), 2);
    ASSERT_TRUE(driver.Step());
    EXPECT_EQ(driver.scheduler().CountsOf(id).cached_tokens, cached);
    while (driver.Step()) continue;
  }
  EXPECT_EQ(driver.replayed_tokens(), 5000);
  driver.ExpectAsAlone(random);
  driver.ExpectNothingLeft();
}

TEST(Scheduler, AReplayThatIsPreemptedIsDoneAgain) {
  Driver driver({.max_sequences = 2,
                 .context_blocks = 6,
                 .replay_tokens = 900,
                 .max_model_len = 1536,
                 .token_0_ends = false});
  std::mt19937 random(1);
  driver.Add(BranchingPrompt(1100, 200, 8), 2);  // five blocks, the snapshot at the last one
  while (driver.Step()) continue;
  const RequestId older = driver.Add(Prompt(254, 5), 20);
  while (driver.outputs().at(older).drawn.empty()) ASSERT_TRUE(driver.Step());
  // Four blocks are shared, the fifth goes for its own one; then the older one wants a second.
  const RequestId replaying = driver.Add(BranchingPrompt(1100, 20, 9), 5);
  while (driver.outputs().at(older).unfinished > 0) ASSERT_TRUE(driver.Step());
  EXPECT_EQ(driver.scheduler().CountsOf(replaying).preemptions, 1);
  EXPECT_EQ(driver.scheduler().CountsOf(replaying).cached_tokens, 1024 - 900);
  while (driver.Step()) continue;
  EXPECT_GT(driver.replayed_tokens(), 900);
  driver.ExpectAsAlone(random);
  driver.ExpectNothingLeft();
}

TEST(Scheduler, AReplayIsCancelledAsAnyPrompt) {
  Driver driver({.max_sequences = 2, .context_blocks = 10});
  driver.Add(BranchingPrompt(1100, 700, 8), 2);
  while (driver.Step()) continue;
  const RequestId replaying = driver.Add(BranchingPrompt(1100, 20, 9), 2);
  ASSERT_TRUE(driver.Step());  // 160 of 254 tokens
  EXPECT_EQ(driver.replayed_tokens(), 160);
  driver.Cancel(replaying);
  EXPECT_FALSE(driver.Step());
  driver.ExpectNothingLeft();
}

// (a), (b) and (c) of server.md §1.5.
TEST(Scheduler, AHitThatLacksAPieceIsNoticed) {
  for (int missing = 0; missing < 4; ++missing) {
    Driver driver({.context_blocks = 20});
    driver.Add(Prompt(600, 3), 5);
    while (driver.Step()) continue;
    driver.scheduler().Add({.id = 100, .prompt = Prompt(600, 3)});
    StepPlan plan = driver.scheduler().Next();
    SequencePages pages = *plan.items[0].pages;
    ASSERT_EQ(pages.position, 512);
    plan.items[0].pages = &pages;
    if (missing == 0) std::swap(pages.context_blocks[0], pages.context_blocks[1]);
    if (missing == 1) pages.window_pages[6] = -1;
    if (missing == 2) plan.restores.clear();
    EXPECT_EQ(driver.fake().Run(plan).has_value(), missing == 3) << missing;
  }
}

TEST(Scheduler, AConversationGoesOnFromTheEndOfTheLastAnswer) {
  Driver driver({.context_blocks = 20});
  std::mt19937 random(1);
  std::vector<int32_t> prompt = Prompt(400, 31);
  for (int turn = 0; turn < 4; ++turn) {
    const RequestId id = driver.Add(prompt, 200);
    ASSERT_TRUE(driver.Step());
    const int64_t cached = driver.scheduler().CountsOf(id).cached_tokens;
    while (driver.Step()) continue;
    EXPECT_EQ(cached, turn == 0 ? 0 : (std::ssize(prompt) - 31) / 256 * 256) << "turn " << turn;
    const std::vector<int32_t>& drawn = driver.outputs().at(id).drawn.at(0);
    prompt.insert(prompt.end(), drawn.begin(), drawn.end());
    const std::vector<int32_t> question = Prompt(30, 100 + static_cast<uint32_t>(turn));
    prompt.insert(prompt.end(), question.begin(), question.end());
  }
  driver.ExpectAsAlone(random);
  driver.ExpectNothingLeft();
}

TEST(Scheduler, SaltsSeparateAndPromptLogitsDoNotRead) {
  Driver driver({.context_blocks = 20});
  Scheduler& scheduler = driver.scheduler();
  const auto cached = [&](const std::string& salt, bool prompt_logits) {
    static RequestId id = 1000;
    scheduler.Add({.id = ++id,
                   .prompt = Prompt(600, 3),
                   .draws = false,
                   .prompt_logits = prompt_logits,
                   .cache_salt = salt});
    int64_t found = -1, rows = 0;
    for (StepPlan plan = scheduler.Next(); !plan.empty(); plan = scheduler.Next()) {
      found = scheduler.CountsOf(id).cached_tokens;
      rows += plan.logits_rows();
      EXPECT_TRUE(driver.fake().Run(plan));
      scheduler.Advance({});
    }
    EXPECT_EQ(rows, prompt_logits ? 600 : 0);
    return found;
  };
  EXPECT_EQ(cached("a", false), 0);
  EXPECT_EQ(cached("a", false), 512);
  EXPECT_EQ(cached("b", false), 0);
  EXPECT_EQ(cached("", false), 0);
  EXPECT_EQ(cached("a", true), 0);
  EXPECT_EQ(cached("c", true), 0);
  EXPECT_EQ(cached("c", false), 512);  // written all the same
}

TEST(Scheduler, CancellingFreesAtOnceInEveryState) {
  Driver driver({.max_sequences = 2, .context_blocks = 8, .prefix_cache = false});
  const RequestId decoding = driver.Add(Prompt(30, 1), 500, /*n=*/2);
  ASSERT_TRUE(driver.Step());
  const RequestId prefilling = driver.Add(Prompt(1000, 2), 5);
  const RequestId waiting = driver.Add(Prompt(1000, 3), 5);
  ASSERT_TRUE(driver.Step());
  for (const RequestId id : {waiting, prefilling, decoding, decoding}) driver.Cancel(id);
  EXPECT_EQ(driver.scheduler().Counts().pool_used, KvPoolSizes());
  EXPECT_FALSE(driver.Step());
  EXPECT_FALSE(driver.scheduler().Cancel(12345));
}

TEST(Scheduler, RefusesLimitsUnderWhichItCouldNotGoOn) {
  const auto error = [](const Sizes& sizes, int64_t sequences, int64_t batch) {
    const auto scheduler = Scheduler::Create(LimitsOf(sizes), {sequences, batch, true});
    return scheduler ? std::string() : scheduler.error().message;
  };
  const Sizes sizes{.max_sequences = 4, .batch_tokens = 160};
  EXPECT_EQ(error(sizes, 4, 160), "");
  EXPECT_EQ(error(sizes, 4, 132), "");
  EXPECT_NE(error(sizes, 4, 131).find("4 + 128 = 132"), std::string::npos);
  EXPECT_NE(error(sizes, 4, 161).find("at most 160"), std::string::npos);
  EXPECT_NE(error(sizes, 0, 160).find("max_num_seqs"), std::string::npos);
  EXPECT_NE(error({.replay_tokens = 126}, 4, 160).find("replays of 126"), std::string::npos);
  EXPECT_NE(error(sizes, 5, 160).find("state slots"), std::string::npos);
  EXPECT_NE(error({.context_blocks = 2, .max_model_len = 513}, 4, 160).find("use 2 to 512"),
            std::string::npos);
}

TEST(Scheduler, APlanCanBePrinted) {
  Driver driver({});
  driver.Add({5, 6, 7}, 3);
  driver.Step();
  EXPECT_EQ(driver.last_plan(),
            "step 1: 3 tokens\n"
            "  1.0 at 0: tokens [5 6 7], last logits, draws [0], slot 0, blocks [0], window [0]\n");
}

}  // namespace
}  // namespace halfbyte
