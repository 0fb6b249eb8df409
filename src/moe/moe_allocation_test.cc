// R88: after the first call of a size, Run asks for no memory. A program of its own, because it
// counts what operator new is asked for.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "moe/moe_test_layer.h"

namespace {
std::atomic<int64_t> allocations = 0;
}  // namespace

// g++ 12 does not see that this operator new and these operators delete belong together.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace halfbyte {
namespace {

TEST(MoeLayer, RunAllocatesNothing) {  // R88
  const TestShape shape{.hidden = 96, .intermediate = 64, .experts = 7, .tokens = 40, .top_k = 3};
  const TestInput input(shape, 1), other(shape, 2);
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    const TestLayer layer(shape, format, 3);
    for (const Arithmetic arithmetic : {Arithmetic::kW4a16, Arithmetic::kW4a4, Arithmetic::kW4a8}) {
      for (const bool per_token : {false, true}) {
        MoeParams params = layer.Params(arithmetic);
        if (!per_token) {
          params.gate_up_input_scale = GlobalScale(0.004f);
          params.down_input_scale = GlobalScale(0.031f);
        }
        const MoeLayer moe = layer.Layer(params);
        MoeWorkspace workspace(layer.Limits(32));  // in pieces
        ThreadPool pool(2);
        const Context context(pool);
        std::vector<float> out(input.hidden.size());
        const auto run = [&](const TestInput& x, int64_t tokens) {
          moe.Run(context, x.Hidden().Rows(0, tokens), x.Routing().Rows(0, tokens),
                  {out.data(), tokens, shape.hidden}, workspace);
        };
        run(input, shape.tokens);
        const int64_t before = allocations.load();
        run(other, shape.tokens);
        for (int64_t tokens = 0; tokens <= shape.tokens; ++tokens) run(input, tokens);
        EXPECT_EQ(allocations.load() - before, 0)
            << WeightFormatName(format) << ' ' << ArithmeticName(arithmetic) << ' ' << per_token;
      }
    }
  }
}

}  // namespace
}  // namespace halfbyte
