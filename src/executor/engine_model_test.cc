// The engine on the bundled model: company, cached prefixes and preemption change no token and no
// log-probability. Built a second time for a GPU, with HALFBYTE_TEST_GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "engine/engine_loop.h"
#include "engine/engine_test_requests.h"
#include "executor/model_executor.h"
#include "model/load_routed_layer.h"
#include "offline/generator.h"

namespace halfbyte {
namespace {

#ifdef HALFBYTE_TEST_GPU
constexpr std::optional<int> kGpu = HALFBYTE_TEST_GPU;
#else
constexpr std::optional<int> kGpu;
#endif

const std::filesystem::path kModel =
    std::filesystem::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4";

class EngineOnTheBundledModel : public testing::Test {
 protected:
  std::unique_ptr<EngineLoop> NewLoop(ModelExecutorOptions options) {
    auto executor = ModelExecutor::Create(*model_, options);
    EXPECT_TRUE(executor) << executor.error().message;
    EngineOptions engine;
    engine.scheduler = {.max_sequences = options.max_sequences, .max_batch_tokens = 256};
    engine.eos_ids = {1};
    engine.pool = &pool_;
    return *EngineLoop::Create(*std::move(executor), nullptr, engine, nullptr);
  }
  static void Run(EngineLoop& loop, const std::vector<Request>& requests) {
    RequestId id = 0;
    for (const Request& request : requests) loop.Add(++id, request);
    for (auto stepped = loop.Step(); stepped && *stepped; stepped = loop.Step()) continue;
  }
  static OutputEvent ResultOf(const Request& request) {
    Results results;
    Collect(results, request.mailbox->Take());
    return results.at(0);
  }
  OutputEvent Alone(Request request) {
    request.mailbox = std::make_shared<Mailbox>();
    const auto loop = NewLoop({.max_sequences = 1});
    Run(*loop, {request});
    return ResultOf(request);
  }
  static Request Ask(int64_t prompt_tokens, int64_t max_tokens, uint32_t seed) {
    Request request = IdsRequest(RandomIds(prompt_tokens, seed, 4000), max_tokens, seed);
    if (seed % 2 == 0) request.sampling.temperature = 0;
    request.sampling.top_p = seed % 3 == 0 ? 0.9 : 1;
    request.logprobs = 2;
    request.stop.ignore_eos = true;
    return request;
  }
  static void ExpectEqual(const OutputEvent& a, const OutputEvent& b) {
    EXPECT_EQ(a.token_ids, b.token_ids);
    EXPECT_EQ(a.content_logprobs, b.content_logprobs);
    EXPECT_EQ(a.finish, b.finish);
  }

  void SetUp() override {
    auto loaded = Transformer::Load(kModel, {.batch_tokens = 256, .gpu = kGpu}, Context(pool_));
    if (kGpu && !loaded) GTEST_SKIP() << "needs a GPU: " << loaded.error().message;
    ASSERT_TRUE(loaded) << loaded.error().message;
    model_ = *std::move(loaded);
  }

  ThreadPool pool_{2};
  std::unique_ptr<Transformer> model_;
};

TEST_F(EngineOnTheBundledModel, ARequestAmongThirtyOneOthersIsAsAlone) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 32; ++i) requests.push_back(Ask(5 + 3 * i, 4 + i % 5, i));
  const auto loop = NewLoop({.max_sequences = 32});
  Run(*loop, requests);
  for (const size_t i : {0, 7, 18, 31}) ExpectEqual(ResultOf(requests[i]), Alone(requests[i]));
}

TEST_F(EngineOnTheBundledModel, GivesWhatThePlainLoopGives) {
  Request request = Ask(30, 12, 4);
  const GenerateRequest plain{
      .prompt = request.prompt, .max_tokens = 12, .sampling = request.sampling};
  EXPECT_EQ(Alone(request).token_ids,
            GenerateTokens(*model_, plain, [](int32_t) { return true; })->tokens);
}

TEST_F(EngineOnTheBundledModel, APrefixHitIsAColdRunBitForBit) {
  const Request cold = Ask(600, 6, 5);
  Request hit = cold;
  hit.mailbox = std::make_shared<Mailbox>();
  const auto loop = NewLoop({.max_sequences = 2});
  Run(*loop, {cold});
  loop->Add(2, hit);
  while (*loop->Step()) continue;
  const OutputEvent first = ResultOf(cold), second = ResultOf(hit);
  EXPECT_EQ(first.usage.cached_tokens, 0);
  EXPECT_EQ(second.usage.cached_tokens, 512);
  ExpectEqual(first, second);
}

// Six layers with windows of 128: 762 tokens are computed again for 1,280 found without a snapshot.
TEST_F(EngineOnTheBundledModel, AReplayIsAColdRunBitForBit) {
  const Request longer = Ask(2000, 1, 5);
  // The query right after the replay is the one that reaches back the farthest.
  Request branch = Ask(1, 6, 7);
  branch.prompt.insert(branch.prompt.begin(), longer.prompt.begin(), longer.prompt.begin() + 1280);
  const auto loop = NewLoop({.max_sequences = 2});
  Run(*loop, {longer});
  loop->Add(2, branch);
  while (*loop->Step()) continue;
  const OutputEvent replayed = ResultOf(branch);
  EXPECT_EQ(replayed.usage.cached_tokens, 1280 - 762);
  ExpectEqual(replayed, Alone(branch));
  // What the replay left behind is as good.
  branch.mailbox = std::make_shared<Mailbox>();
  loop->Add(3, branch);
  while (*loop->Step()) continue;
  const OutputEvent hit = ResultOf(branch);
  EXPECT_EQ(hit.usage.cached_tokens, 1280);
  ExpectEqual(hit, replayed);
}

TEST_F(EngineOnTheBundledModel, PreemptionAndForksChangeNothing) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 3; ++i) requests.push_back(Ask(230 + i, 40, 10 + i));
  requests[1].n = 2;
  const auto units = *KvLayout::Create(model_->config(), model_->options().math);
  // Four blocks for what grows to eight.
  const int64_t window_pages = KvPoolSizes::WindowPages(4, 256, 2, 128);
  const int64_t memory = 4 * units.state_slot_bytes() + window_pages * units.window_page_bytes() +
                         2 * units.tail_bytes() + 4 * units.context_block_bytes();
  const auto loop = NewLoop({.max_sequences = 4, .kv_memory_bytes = memory, .snapshots = 2});
  EXPECT_EQ(loop->limits().pools.context_blocks, 4);
  Run(*loop, requests);
  EXPECT_GT(loop->counts().preemptions, 0);
  for (const Request& request : requests) {
    Results results;
    Collect(results, request.mailbox->Take());
    for (const auto& [choice, result] : results) {
      Request single = request;
      single.n = 1;
      single.first_choice = choice;
      single.mailbox = std::make_shared<Mailbox>();
      const auto alone = NewLoop({.max_sequences = 1});
      Run(*alone, {single});
      Results expected;
      Collect(expected, single.mailbox->Take());
      ExpectEqual(result, expected.at(choice));
    }
  }
}

// Scales for activations a thousand times smaller.
TEST_F(EngineOnTheBundledModel, SaturatedBlocksAreCounted) {
  const auto saturated = [&](Transformer& model) {
    auto executor = *ModelExecutor::Create(model, {.max_sequences = 1});
    const Executor& counted = *executor;
    const auto loop =
        *EngineLoop::Create(std::move(executor), nullptr, {.scheduler = {1, 256}}, nullptr);
    Run(*loop, {Ask(20, 2, 1)});
    EXPECT_EQ(loop->saturated_blocks(), counted.saturated_blocks());
    return loop->saturated_blocks();
  };
  EXPECT_EQ(saturated(*model_), 0);
  ActivationScales small{.shape = MoeShapeOf(model_->config())};
  small.layers.assign(static_cast<size_t>(small.shape.layers),
                      {GlobalScale(1e-6f), GlobalScale(1e-6f)});
  const auto model = *Transformer::Load(
      kModel,
      {.arithmetic = Arithmetic::kW4a4,
       .activation_scales = {.source = ActivationScalePolicy::Source::kMeasured,
                             .headroom = 0,
                             .measured = std::make_shared<ActivationScales>(small)},
       .batch_tokens = 256,
       .gpu = kGpu},
      Context(pool_));
  EXPECT_GT(saturated(*model), 100);
}

TEST_F(EngineOnTheBundledModel, MemoryThatIsTooSmallIsRefusedWithTheArithmetic) {
  const auto executor = ModelExecutor::Create(*model_, {.kv_memory_bytes = 1 << 20});
  ASSERT_FALSE(executor);
  EXPECT_NE(executor.error().message.find("the largest that fits is"), std::string::npos);
  const auto large = ModelExecutor::Create(*model_, {.max_sequences = 2});
  ASSERT_TRUE(large) << large.error().message;
  EXPECT_EQ((*large)->limits().max_model_len, 4096);
}

}  // namespace
}  // namespace halfbyte
