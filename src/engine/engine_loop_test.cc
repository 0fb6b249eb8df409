// The engine step by step, on the fake executor.
#include "engine/engine_loop.h"

#include <gtest/gtest.h>

#include "engine/engine_test_requests.h"
#include "sampling/logprobs.h"
#include "text/text_test_tokenizer.h"

namespace halfbyte {
namespace {

class Loop {
 public:
  explicit Loop(FakeOptions fake, EngineObserver* observer = nullptr,
                const Tokenizer* tokenizer = nullptr, std::vector<int32_t> eos = {}) {
    EngineOptions options = OptionsFor(fake.limits);
    options.eos_ids = std::move(eos);
    loop_ = *EngineLoop::Create(std::make_unique<FakeExecutor>(std::move(fake)), tokenizer, options,
                                observer);
  }

  RequestId Add(const Request& request) {
    loop_->Add(++last_id_, request);
    return last_id_;
  }
  // Until nothing is left to do.
  void Run() {
    for (auto stepped = loop_->Step(); stepped && *stepped; stepped = loop_->Step()) continue;
  }
  Results RunOne(const Request& request) {
    Add(request);
    Run();
    return ResultsOf(request);
  }
  static Results ResultsOf(const Request& request) {
    Results results;
    Collect(results, request.mailbox->Take());
    return results;
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(loop_->unfinished(), 0);
    loop_->scheduler().ClearPrefixCache();
    EXPECT_EQ(loop_->counts().pool_used, KvPoolSizes());
  }
  EngineLoop& operator*() { return *loop_; }
  EngineLoop* operator->() { return loop_.get(); }

 private:
  std::unique_ptr<EngineLoop> loop_;
  RequestId last_id_ = 0;
};

// Every token is followed by the next id.
int32_t CountUp(SequenceId, int64_t, int32_t token) { return (token + 1) % 60; }

TEST(EngineLoop, GivesTheScriptedTokensAndCountsThem) {
  Loop loop({.limits = FakeLimits(2, 4), .script = CountUp});
  const Request request = IdsRequest({7, 8, 9}, 4);
  const OutputEvent result = loop.RunOne(request).at(0);
  EXPECT_EQ(result.token_ids, (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_EQ(result.finish, Finish{.reason = FinishReason::kLength});
  EXPECT_EQ(result.usage, (Usage{3, 0, 4, 0}));
  loop.ExpectNothingLeft();
}

TEST(EngineLoop, TellsThatARequestIsInTheBatchBeforeItHasTokens) {
  Loop loop({.limits = FakeLimits(1, 12), .script = CountUp});
  const Request running = IdsRequest(RandomIds(600, 1), 2), waiting = IdsRequest({7}, 1);
  loop.Add(running);
  loop.Add(waiting);
  ASSERT_TRUE(*loop->Step());  // a part of the prompt
  const std::vector<OutputEvent> events = running.mailbox->Take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].token_ids.empty() && !events[0].finish);
  EXPECT_EQ(events[0].usage.prompt_tokens, 600);
  EXPECT_TRUE(waiting.mailbox->Take().empty());
}

TEST(EngineLoop, SignalsWhenAllThatAStepGivesIsMarked) {
  Loop loop({.limits = FakeLimits(3, 12), .script = CountUp});
  std::string calls;  // m: marked, s: signalled
  const auto request = [&](int64_t max_tokens) {
    Request r = IdsRequest({7}, max_tokens);
    r.mailbox = std::make_shared<Mailbox>(Wake([&] { calls += 'm'; }, [&] { calls += 's'; }));
    loop.Add(r);
    return r;
  };
  const auto calls_of = [&](const auto& action) {
    calls.clear();
    action();
    return calls;
  };
  const Request first = request(2), second = request(3), third = request(100);
  ASSERT_TRUE(*loop->Step());
  for (const Request& r : {first, second, third}) r.mailbox->Take();
  EXPECT_EQ(calls_of([&] { ASSERT_TRUE(*loop->Step()); }), "mmmsss");
  // What is not taken needs no further mark.
  for (const Request& r : {second, third}) r.mailbox->Take();
  EXPECT_EQ(calls_of([&] { ASSERT_TRUE(*loop->Step()); }), "mmss");
  third.mailbox->Take();
  EXPECT_EQ(calls_of([&] { loop->Cancel(3, CancelCause::kClient); }), "ms");
}

TEST(EngineLoop, AStopEndsTheSequenceInItsOwnStep) {
  const Tokenizer& tokenizer = TestTokenizer();
  const std::vector<int32_t> answer =
      *tokenizer.Encode("The answer is here. And more.", ControlTokens::kAsText);
  Loop loop(
      {.limits = FakeLimits(2, 4, 4096),
       .script = [&](SequenceId, int64_t position,
                     int32_t) { return answer[static_cast<size_t>(position) % answer.size()]; }},
      nullptr, &tokenizer);
  Request request = IdsRequest({7}, 50);
  request.output.kind = OutputFormat::Kind::kText;
  request.stop.strings = {"here"};
  request.first_choice = 5;
  const OutputEvent result = loop.RunOne(request).at(5);
  EXPECT_EQ(result.content, "The answer is ");
  EXPECT_EQ(result.finish->stop_string, "here");
  EXPECT_EQ(loop->steps(), std::ssize(result.token_ids));
  EXPECT_LT(result.token_ids.size(), answer.size());
  loop.ExpectNothingLeft();
}

TEST(EngineLoop, ChoicesOfOneRequestAreWhatTheyWouldBeAlone) {
  for (const int64_t sequences : {1, 2, 4}) {  // with fewer slots than choices, some wait
    Loop together({.limits = FakeLimits(sequences, 12)});
    Request request = IdsRequest(RandomIds(300, 1), 40, 9);
    request.n = 4;
    const Results results = together.RunOne(request);
    ASSERT_TRUE(Complete(results, 4));
    for (int32_t choice = 0; choice < 4; ++choice) {
      Loop alone({.limits = FakeLimits(1, 12)});
      Request single = IdsRequest(request.prompt, 40, 9);
      single.first_choice = choice;
      EXPECT_EQ(alone.RunOne(single).at(choice).token_ids, results.at(choice).token_ids);
    }
    EXPECT_NE(results.at(0).token_ids, results.at(1).token_ids);
    together.ExpectNothingLeft();
  }
}

TEST(EngineLoop, PromptsAreScoredTokenByToken) {
  const ExecutorLimits limits = FakeLimits(2, 4);
  for (const int64_t max_tokens : {0, 3}) {
    Loop loop({.limits = limits});
    Request request = IdsRequest(RandomIds(600, 3), max_tokens);  // several chunks
    request.n = 2;
    request.logprobs = 2;
    request.prompt_logprobs = true;
    const Results results = loop.RunOne(request);
    ASSERT_TRUE(Complete(results, 2));
    EXPECT_TRUE(results.at(1).prompt_logprobs.empty());
    const auto& entries = results.at(0).prompt_logprobs;
    ASSERT_EQ(entries.size(), 600u);
    EXPECT_FALSE(entries[0]);
    for (const size_t at : {1, 255, 256, 257, 258, 300, 599}) {
      const std::vector<float> logits =
          FakeExecutor::LogitsAfter(std::span(request.prompt).first(at), limits);
      LogprobEntry expected = LogprobsOf(logits, request.prompt[at], 2);
      EXPECT_EQ(entries[at]->chosen, expected.chosen) << at;
      EXPECT_EQ(entries[at]->top, expected.top) << at;
    }
    EXPECT_EQ(std::ssize(results.at(0).token_ids), max_tokens);
    EXPECT_EQ(results.at(1).finish, Finish{.reason = FinishReason::kLength});
    loop.ExpectNothingLeft();
  }
}

TEST(EngineLoop, PreemptionChangesNoToken) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) {
    requests.push_back(IdsRequest(RandomIds(100 + 90 * i, i), 300, i));
    if (i % 2 == 0) requests.back().sampling.temperature = 0;
    requests.back().logprobs = 3;
  }
  Loop crowded({.limits = FakeLimits(6, 5)});
  for (const Request& request : requests) crowded.Add(request);
  crowded.Run();
  EXPECT_GT(crowded->counts().preemptions, 1);
  for (const Request& request : requests) {
    Loop roomy({.limits = FakeLimits(1, 20)});
    Request same = request;
    same.mailbox = std::make_shared<Mailbox>();
    const OutputEvent alone = roomy.RunOne(same).at(0);
    const OutputEvent result = Loop::ResultsOf(request).at(0);
    EXPECT_EQ(result.token_ids, alone.token_ids);
    EXPECT_EQ(result.token_ids.size(), 300u);
    EXPECT_EQ(result.content_logprobs, alone.content_logprobs);
  }
  crowded.ExpectNothingLeft();
}

TEST(EngineLoop, ARowThatIsNotFiniteFailsItsSequenceOnly) {
  Loop loop({.limits = FakeLimits(4, 8), .script = CountUp, .nan_row = [](SequenceId id) {
               return id.request == 2 || id == SequenceId{3, 1};
             }});
  std::vector<Request> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(IdsRequest({5, 6}, 3));
    requests.back().n = i == 2 ? 2 : 1;
    loop.Add(requests.back());
  }
  loop.Run();
  EXPECT_EQ(Loop::ResultsOf(requests[0]).at(0).finish->reason, FinishReason::kLength);
  const Finish failed = *Loop::ResultsOf(requests[1]).at(0).finish;
  EXPECT_EQ(failed.reason, FinishReason::kError);
  EXPECT_EQ(failed.error_code, "nonfinite_logits");
  const Results two = Loop::ResultsOf(requests[2]);
  EXPECT_EQ(two.at(0).finish->reason, FinishReason::kLength);
  EXPECT_EQ(two.at(1).finish->reason, FinishReason::kError);
  EXPECT_EQ(two.at(1).token_ids.size(), 1u);  // the first one came with the other choice's
  loop.ExpectNothingLeft();
}

TEST(EngineLoop, AFailedExecutorEndsEverythingAndNothingStartsAgain) {
  Loop loop({.limits = FakeLimits(2, 4), .script = CountUp, .fail_at_step = 3});
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(IdsRequest({5, 6}, 9));
  for (const Request& request : requests) loop.Add(request);
  loop.Run();
  const Request late = IdsRequest({5}, 9);
  const RequestId id = loop.Add(late);
  EXPECT_FALSE(loop->Step());
  loop->Cancel(id, CancelCause::kClient);
  requests.push_back(late);
  for (const Request& request : requests) {
    const Finish finish = *Loop::ResultsOf(request).at(0).finish;
    EXPECT_EQ(finish.error_code, "engine_dead");
    EXPECT_NE(finish.error_message.find("told to fail"), std::string::npos);
  }
  EXPECT_EQ(loop->unfinished(), 0);
}

TEST(EngineLoop, AClientThatDoesNotReadIsCancelled) {
  Loop loop({.limits = FakeLimits(2, 40), .script = CountUp});
  const Request request = IdsRequest({5}, 10000);
  const Request other = IdsRequest({6}, 9000);
  loop.Add(request);
  loop.Add(other);
  Results read;
  for (auto stepped = loop->Step(); *stepped; stepped = loop->Step()) {
    Collect(read, other.mailbox->Take());
  }
  const OutputEvent result = Loop::ResultsOf(request).at(0);
  EXPECT_EQ(result.finish->cancelled, CancelCause::kSlowClient);
  EXPECT_EQ(std::ssize(result.token_ids), Mailbox::kMaxEvents - 1);  // and the admission
  EXPECT_EQ(read.at(0).token_ids.size(), 9000u);
  loop.ExpectNothingLeft();
}

TEST(EngineLoop, DeadlinesEndRequests) {
  Loop loop({.limits = FakeLimits(1, 8), .script = CountUp});
  Request running = IdsRequest({5}, 500);
  running.queue_deadline = EngineClock::now() + std::chrono::hours(1);
  Request waiting = IdsRequest({5}, 500);
  waiting.queue_deadline = EngineClock::now() - std::chrono::seconds(1);
  Request late = IdsRequest({5}, 500);
  late.finish_deadline = EngineClock::now() - std::chrono::seconds(1);
  loop.Add(running);
  loop.Add(waiting);
  loop.Add(late);
  loop.Run();
  EXPECT_EQ(Loop::ResultsOf(running).at(0).token_ids.size(), 500u);
  EXPECT_EQ(Loop::ResultsOf(waiting).at(0).finish->cancelled, CancelCause::kQueueTimeout);
  EXPECT_EQ(Loop::ResultsOf(late).at(0).finish->cancelled, CancelCause::kRequestTimeout);
  loop.ExpectNothingLeft();
}

struct Observer : EngineObserver {
  void OnStep(const StepReport& report) override {
    tokens += report.tokens;
    drawn += report.drawn;
    gaps += std::ssize(report.token_gaps);
  }
  void OnFinished(const RequestReport& report) override { reports.push_back(report); }
  int64_t tokens = 0, drawn = 0, gaps = 0;
  std::vector<RequestReport> reports;
};

TEST(EngineLoop, TellsTheObserver) {
  Observer observer;
  Loop loop({.limits = FakeLimits(2, 8), .script = CountUp}, &observer);
  Request request = IdsRequest(RandomIds(300, 1), 5);
  request.label = "cmpl-1";
  for (int i = 0; i < 2; ++i) {
    request.mailbox = std::make_shared<Mailbox>();
    loop.RunOne(request);
  }
  EXPECT_EQ(observer.tokens, 300 + 4 + 44 + 4);
  EXPECT_EQ(observer.drawn, 10);
  EXPECT_EQ(observer.gaps, 8);
  ASSERT_EQ(observer.reports.size(), 2u);
  const RequestReport& report = observer.reports[1];
  EXPECT_EQ(report.label, "cmpl-1");
  EXPECT_EQ(report.cached_tokens, 256);
  EXPECT_EQ(report.completion_tokens, 5);
  EXPECT_EQ(report.finishes[0].reason, FinishReason::kLength);
  EXPECT_TRUE(report.arrival <= *report.scheduled && *report.scheduled <= *report.first_token &&
              *report.first_token <= report.finished);
}

TEST(EngineLoop, TellsWhatMarkupItKeptOut) {
  const Tokenizer& tokenizer = TestTokenizer();
  Observer observer;
  Loop loop({.limits = FakeLimits(2, 8), .script = CountUp}, &observer, &tokenizer);
  Request request = IdsRequest({*tokenizer.IdOf("<think>") - 1}, 4);
  request.output.kind = OutputFormat::Kind::kChat;
  request.n = 2;
  loop.RunOne(request);
  ASSERT_EQ(*tokenizer.IdOf("</think>"), *tokenizer.IdOf("<think>") + 1);
  ASSERT_EQ(observer.reports.size(), 1u);
  EXPECT_EQ(observer.reports[0].suppressed, (ChatSplitter::Suppressed{.thinks = 4}));
}

TEST(Check, NamesTheFieldThatIsOutOfRange) {
  const ExecutorLimits limits = FakeLimits(2, 4);
  const auto field = [&](const auto& change) {
    Request request = IdsRequest({1, 2, 3}, 5);
    change(request);
    const auto refusal = Check(request, limits, nullptr);
    return refusal ? refusal->field : std::string("accepted");
  };
  EXPECT_EQ(field([](Request&) {}), "accepted");
  EXPECT_EQ(field([](Request& r) { r.prompt.clear(); }), "prompt");
  EXPECT_EQ(field([](Request& r) { r.prompt = {60}; }), "prompt");
  EXPECT_EQ(field([](Request& r) { r.prompt = {-1}; }), "prompt");
  EXPECT_EQ(field([](Request& r) { r.prompt.assign(1024, 1); }), "prompt");
  EXPECT_EQ(field([](Request& r) { r.prompt.assign(1019, 1); }), "accepted");
  EXPECT_EQ(field([](Request& r) { r.prompt.assign(1020, 1); }), "max_tokens");
  EXPECT_EQ(field([](Request& r) { r.max_tokens = INT64_MAX; }), "max_tokens");
  EXPECT_EQ(field([](Request& r) { r.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(field([](Request& r) { r.min_tokens = 6; }), "min_tokens");
  EXPECT_EQ(field([](Request& r) { r.min_tokens = -1; }), "min_tokens");
  EXPECT_EQ(field([](Request& r) { r.n = 0; }), "n");
  EXPECT_EQ(field([](Request& r) { r.sampling.temperature = 3; }), "temperature");
  EXPECT_EQ(field([](Request& r) { r.sampling.logit_bias = {{60, 1}}; }), "logit_bias");
  EXPECT_EQ(field([](Request& r) { r.logprobs = 21; }), "logprobs");
  EXPECT_EQ(field([](Request& r) { r.prompt_logprobs = true; }), "logprobs");
  EXPECT_EQ(field([](Request& r) { r.stop.token_ids = {99}; }), "stop_token_ids");
  EXPECT_EQ(field([](Request& r) { r.stop.token_ids.assign(65, 1); }), "stop_token_ids");
  EXPECT_EQ(field([](Request& r) { r.stop.strings = {"a"}; }), "stop");
  EXPECT_EQ(field([](Request& r) { r.cache_salt.assign(257, 'a'); }), "cache_salt");
  EXPECT_EQ(field([](Request& r) { r.output.kind = OutputFormat::Kind::kText; }), "output");
  EXPECT_EQ(field([](Request& r) { r.mailbox = nullptr; }), "mailbox");
}

}  // namespace
}  // namespace halfbyte
