// Allocations fail on a request's way through the server, whichever thread asks for them: small
// ones once, so that the reserve helps, large ones for good. The request is answered, or refused
// for memory, and the next one gets its usual answer. A program of its own, for it replaces
// operator new.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "base/json.h"
#include "base/memory_reserve.h"
#include "server/service.h"
#include "server/service_test_client.h"

namespace {

constexpr int64_t kNone = -1;
constexpr int64_t kReserve = 8 << 20;
std::atomic<int64_t> allocations_left = kNone;  // the one that makes it 0 fails
std::atomic<size_t> largest = SIZE_MAX;         // larger ones fail
thread_local bool never_fails = false;          // in the test's own thread

}  // namespace

void* operator new(std::size_t bytes) {
  const auto handle = [] {
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();  // throws, unless the reserve helps
  };
  if (!never_fails && bytes > largest.load(std::memory_order_relaxed)) {
    while (true) handle();
  }
  if (!never_fails && allocations_left.load(std::memory_order_relaxed) > 0 &&
      allocations_left.fetch_sub(1) == 1) {
    handle();
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace halfbyte {
namespace {

using test::Exchange;
using test::Get;
using test::Post;

class OutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
    never_fails = true;
    ASSERT_TRUE(MemoryReserve::Install(kReserve));
    const ServedModelOptions fake{
        .directory = std::filesystem::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4",
        .fake = FakeModel(),
        .max_num_seqs = 4,
        .served_names = {"tiny"}};
    ServiceOptions options;
    options.scheduler.max_sequences = 4;
    service_ =
        std::make_unique<Service>(std::move(options), Announce(fake), *ApiKeys::Create({}, {}));
    auto model = LoadServedModel(fake, [](const ProgressReport&) {});
    ASSERT_TRUE(model) << model.error().message;
    ASSERT_TRUE(service_->Start(*std::move(model)));
  }

  Exchange Ask(const std::string& path, const Json& body) {
    Exchange exchange(*service_, Post(path, body.dump()));
    EXPECT_TRUE(exchange.Run()) << "no end";
    return exchange;
  }

  // Fails one allocation after the other of the same request.
  void FailEach(const std::string& path, const Json& body) {
    const Json usual = Json::parse(Ask(path, body).body());
    int64_t n = 1;
    for (bool reached = true; reached; n += 1 + n / 64) {
      allocations_left = n;
      const Exchange exchange = Ask(path, body);
      reached = allocations_left.exchange(kNone) <= 0;
      MemoryReserve::Refill();
      if (exchange.status() != 200) {
        ASSERT_EQ(exchange.status(), 503) << "allocation " << n << ": " << exchange.body();
        EXPECT_EQ(Json::parse(exchange.body())["error"]["code"], "out_of_memory");
      }
      const Json next = Json::parse(Ask(path, body).body());
      for (const char* part : {"choices", "tokens", "usage"}) {
        ASSERT_EQ(next.value(part, Json()), usual.value(part, Json())) << "after allocation " << n;
      }
    }
    EXPECT_GT(n, 20) << "nothing was made to fail";
  }

  // All allocations beyond `bytes` fail.
  void FailLarge(const std::string& path, const Json& body, size_t bytes) {
    largest = bytes;
    const Exchange exchange = Ask(path, body);
    largest = SIZE_MAX;
    EXPECT_EQ(exchange.status(), 503) << exchange.body();
    EXPECT_EQ(Json::parse(exchange.body())["error"]["code"], "out_of_memory");
  }

  std::unique_ptr<Service> service_;
};

TEST_F(OutOfMemory, InASmallAllocationIsNobodysEnd) {
  FailEach("/v1/completions", {{"model", "tiny"},
                               {"prompt", "The number of dog is"},
                               {"max_tokens", 5},
                               {"temperature", 0}});
  FailEach("/v1/chat/completions", {{"model", "tiny"},
                                    {"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                                    {"max_tokens", 5},
                                    {"temperature", 0},
                                    {"logprobs", true}});
  FailEach("/tokenize", {{"model", "tiny"}, {"prompt", "The number of dog is"}});
}

TEST_F(OutOfMemory, InALargeOneIsTheEndOfThatRequestAlone) {
  const Json small{{"model", "tiny"}, {"prompt", "The"}, {"max_tokens", 5}, {"temperature", 0}};
  const Json usual = Json::parse(Ask("/v1/completions", small).body())["choices"];
  Json large = small;
  large["user"] = std::string(3 << 20, 'u');
  FailLarge("/v1/completions", large, 1 << 20);
  FailLarge("/tokenize", {{"model", "tiny"}, {"prompt", std::string(3 << 20, 'a')}}, 1 << 20);
  EXPECT_EQ(Json::parse(Ask("/v1/completions", small).body())["choices"], usual);
}

}  // namespace
}  // namespace halfbyte
