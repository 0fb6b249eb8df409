// The engine with its thread, used from many threads at once.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "engine/engine_test_requests.h"

namespace halfbyte {
namespace {

int32_t CountUp(SequenceId, int64_t, int32_t token) { return (token + 1) % 60; }

std::unique_ptr<Engine> Start(FakeOptions fake, int64_t max_queued = 1000,
                              bool prefix_cache = true) {
  EngineOptions options = OptionsFor(fake.limits);
  options.max_queued_requests = max_queued;
  options.scheduler.prefix_cache = prefix_cache;
  static ThreadPool pool(2);
  options.pool = &pool;
  return *Engine::Start(std::make_unique<FakeExecutor>(std::move(fake)), nullptr, options);
}

Results WaitFor(const Request& request) {
  Results results;
  while (!Complete(results, request.n)) Collect(results, request.mailbox->WaitAndTake());
  return results;
}

// Lets the fake executor wait until a test lets it go.
class Gate {
 public:
  void Wait() {
    std::unique_lock lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void AwaitArrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return arrived_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false, open_ = false;
};

TEST(EngineThreads, ManyClientsGetWhatTheyAskedForAndLeaveNothing) {
  constexpr int kClients = 6, kRequests = 25;
  const auto engine = Start({.limits = FakeLimits(8, 24), .script = CountUp}, 1000,
                            /*prefix_cache=*/false);
  std::atomic<int64_t> complete{0}, cancelled{0}, tokens{0};
  std::vector<std::thread> clients;
  for (uint32_t client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 random(client);
      for (int i = 0; i < kRequests; ++i) {
        Request request = IdsRequest(RandomIds(1 + random() % 400, random()), 1 + random() % 60);
        request.n = 1 + static_cast<int32_t>(random() % 3);
        const RequestId id = *engine->Submit(request);
        const bool cancel = random() % 3 == 0;
        if (cancel) {
          engine->Cancel(id, CancelCause::kDisconnected);
          engine->Cancel(id, CancelCause::kClient);  // too late to be the reason
        }
        for (const auto& [choice, result] : WaitFor(request)) {
          int32_t last = request.prompt.back();
          for (const int32_t token : result.token_ids) {
            EXPECT_EQ(token, (last + 1) % 60);  // none lost, repeated or reordered
            last = token;
          }
          tokens += std::ssize(result.token_ids);
          if (result.finish->reason == FinishReason::kAbort) {
            EXPECT_TRUE(cancel);
            EXPECT_EQ(result.finish->cancelled, CancelCause::kDisconnected);
            ++cancelled;
          } else {
            EXPECT_EQ(std::ssize(result.token_ids), request.max_tokens);
            ++complete;
          }
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(complete, kClients * kRequests / 2);
  // The last event comes before the end of its step.
  EngineStatistics statistics = engine->Statistics();
  while (statistics.unfinished_requests > 0) {
    std::this_thread::yield();
    statistics = engine->Statistics();
  }
  EXPECT_EQ(statistics.scheduler.pool_used, KvPoolSizes());
  EXPECT_EQ(statistics.scheduler.running + statistics.scheduler.waiting, 0);
  EXPECT_EQ(statistics.generation_tokens, tokens);
}

TEST(EngineThreads, AFullQueueRefusesAtOnceWhileAStepLasts) {
  Gate gate;
  const auto engine = Start({.limits = FakeLimits(2, 8),
                             .script = CountUp,
                             .wait = [&](std::chrono::nanoseconds) { gate.Wait(); }},
                            /*max_queued=*/3);
  std::vector<Request> accepted;
  const auto submit = [&] {
    const Request request = IdsRequest({5}, 3);
    const auto id = engine->Submit(request);
    if (id) accepted.push_back(request);
    return id;
  };
  EXPECT_FALSE(engine->Closed(0));
  ASSERT_TRUE(submit());
  gate.AwaitArrival();
  for (int i = 0; i < 20; ++i) {
    const auto id = submit();
    if (id) continue;
    ASSERT_TRUE(engine->Closed(0));
    EXPECT_EQ(engine->Closed(0)->reason, RefusalReason::kQueueFull);
    EXPECT_EQ(id.error().reason, RefusalReason::kQueueFull);
    EXPECT_GE(id.error().retry_after_seconds, 1);
    EXPECT_LE(id.error().retry_after_seconds, 60);
  }
  EXPECT_GE(accepted.size(), 4u);  // three waiting beside the running one ...
  EXPECT_LE(accepted.size(), 5u);  // ... and perhaps one that takes the second place
  gate.Open();
  for (const Request& request : accepted) {
    EXPECT_EQ(WaitFor(request).at(0).token_ids.size(), 3u);
  }
  EXPECT_TRUE(submit());
}

TEST(EngineThreads, AQueueThatOneClientHasFilledIsOpenToOthers) {
  Gate gate;
  const auto engine = Start({.limits = FakeLimits(2, 8),
                             .script = CountUp,
                             .wait = [&](std::chrono::nanoseconds) { gate.Wait(); }},
                            /*max_queued=*/6);
  const auto asked = [](ClientId client, int32_t n) {
    Request request = IdsRequest({5}, 3);
    request.client = client;
    request.n = n;
    return request;
  };
  const auto refused = [&](std::vector<Request> call) {
    const auto ids = engine->Submit(std::move(call));
    return !ids && ids.error().reason == RefusalReason::kQueueFull;
  };
  ASSERT_TRUE(engine->Submit(asked(1, 1)));
  gate.AwaitArrival();
  // Choices count, not requests: of 6 that may wait and 2 for which there are slots.
  ASSERT_TRUE(engine->Submit({asked(1, 2), asked(1, 1)}));
  EXPECT_TRUE(refused({asked(1, 3), asked(1, 2)})) << "all of a call or nothing";
  EXPECT_TRUE(engine->Submit(asked(1, 3)));
  EXPECT_FALSE(refused({asked(1, 1)}));
  EXPECT_TRUE(refused({asked(1, 1)}));
  EXPECT_TRUE(engine->Closed(1));
  EXPECT_FALSE(engine->Closed(2));
  // One who has nothing there may ask for more than the queue has.
  const Request large = asked(2, 16);
  EXPECT_TRUE(engine->Submit(large));
  EXPECT_TRUE(engine->Closed(2));
  EXPECT_TRUE(engine->Submit(asked(3, 1)));
  gate.Open();
  EXPECT_EQ(WaitFor(large).size(), 16u);
}

TEST(EngineThreads, DrainRefusesNewRequestsAndFinishesOldOnes) {
  Gate gate;
  const auto engine =
      Start({.limits = FakeLimits(2, 8), .script = CountUp, .wait = [&](std::chrono::nanoseconds) {
               gate.Wait();
             }});
  const Request request = IdsRequest({5}, 30);
  ASSERT_TRUE(engine->Submit(request));
  engine->Drain();
  const auto refused = engine->Submit(IdsRequest({5}, 30));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, RefusalReason::kDraining);
  EXPECT_EQ(engine->Closed(0)->reason, RefusalReason::kDraining);
  EXPECT_TRUE(engine->Statistics().draining);
  gate.Open();
  EXPECT_EQ(WaitFor(request).at(0).token_ids.size(), 30u);
}

TEST(EngineThreads, TheEndOfTheEngineEndsItsRequests) {
  const Request request = IdsRequest({5}, 2000);
  const Request all = IdsRequest({5}, 2000);
  {
    const auto engine = Start(
        {.limits = FakeLimits(2, 8), .script = CountUp, .step_time = std::chrono::milliseconds(1)});
    ASSERT_TRUE(engine->Submit(all));
    engine->CancelAll(CancelCause::kShutdown);
    EXPECT_EQ(WaitFor(all).at(0).finish->cancelled, CancelCause::kShutdown);
    ASSERT_TRUE(engine->Submit(request));
  }
  EXPECT_EQ(WaitFor(request).at(0).finish->cancelled, CancelCause::kShutdown);
}

TEST(EngineThreads, ADeadExecutorIsToldToEverybody) {
  const auto engine = Start({.limits = FakeLimits(2, 8), .script = CountUp, .fail_at_step = 2});
  const Request request = IdsRequest({5}, 20);
  ASSERT_TRUE(engine->Submit(request));
  EXPECT_EQ(WaitFor(request).at(0).finish->error_code, "engine_dead");
  for (;;) {  // until the death is published, requests are taken and failed
    const Request late = IdsRequest({5}, 20);
    const auto id = engine->Submit(late);
    if (!id) {
      EXPECT_EQ(id.error().reason, RefusalReason::kDead);
      EXPECT_EQ(engine->Closed(0)->reason, RefusalReason::kDead);
      break;
    }
    EXPECT_EQ(WaitFor(late).at(0).finish->error_code, "engine_dead");
  }
  EXPECT_TRUE(engine->Statistics().dead);
}

TEST(Mailbox, MarksItsWakeWhenItStopsBeingEmptyAndLeavesTheSignalToTheEngine) {
  int wakes = 0;
  int signals = 0;
  Mailbox mailbox(Wake([&] { ++wakes; }, [&] { ++signals; }));
  EXPECT_TRUE(mailbox.Take().empty());
  EXPECT_TRUE(mailbox.Put({.choice = 1, .content = "a"}));
  EXPECT_TRUE(mailbox.Put({.choice = 0, .content = "x"}));
  EXPECT_TRUE(mailbox.Put({.choice = 1, .content = "b"}));
  EXPECT_EQ(wakes, 1);
  const std::vector<OutputEvent> events = mailbox.Take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].content, "ab");
  EXPECT_TRUE(mailbox.Put({.content = "y"}));
  EXPECT_EQ(wakes, 2);
  EXPECT_EQ(signals, 0);
  mailbox.Signal();
  EXPECT_EQ(signals, 1);
  EXPECT_TRUE(mailbox.WaitAndTake(EngineClock::now()).size() == 1);
  EXPECT_TRUE(mailbox.WaitAndTake(EngineClock::now()).empty());
}

TEST(Mailbox, RefusesBeyondItsLimitsButTellsTheEnd) {
  Mailbox mailbox;
  EXPECT_TRUE(mailbox.Put({.content = std::string(3 * Mailbox::kMaxBytes, 'a')}));
  EXPECT_FALSE(mailbox.Put({.content = "b"}));
  mailbox.Take();
  EXPECT_TRUE(mailbox.Put({.content = std::string(Mailbox::kMaxBytes, 'a')}));
  EXPECT_FALSE(mailbox.Put({.content = "b"}));
  EXPECT_TRUE(mailbox.Put({.content = "c", .finish = Finish{}}));
  const std::vector<OutputEvent> events = mailbox.Take();
  EXPECT_EQ(std::ssize(events[0].content), Mailbox::kMaxBytes + 1);
  EXPECT_TRUE(events[0].finish);
}

}  // namespace
}  // namespace halfbyte
