#include "kernels/hyper_connection/hyper_connection_cuda.h"

#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr float kEps = 1e-6f;

std::vector<Bf16> ToBits(const std::vector<float>& x) {
  std::vector<Bf16> bits;
  for (const float value : x) bits.push_back(ToBf16(value));
  return bits;
}

std::vector<float> ToFloats(const std::vector<Bf16>& x) {
  std::vector<float> values;
  for (const Bf16 value : x) values.push_back(ToFloat(value));
  return values;
}

// A hyper-connection's numbers on either side, `rows` of fn.
struct Weights {
  Weights(int streams, int64_t hidden, int64_t rows, int64_t scales, uint32_t seed)
      : fn(RandomNormal(rows * streams * hidden, seed,
                        1 / std::sqrt(static_cast<double>(streams * hidden)))),
        base(RandomNormal(rows, seed + 1, 0.5)),
        scale(RandomNormal(scales, seed + 2)),
        norm(RandomNormal(hidden, seed + 3)),
        on_device{DeviceArray<float>(fn), DeviceArray<float>(base), DeviceArray<float>(scale),
                  DeviceArray<float>(norm)},
        host{.fn = {.format = WeightFormat::kF32,
                    .rows = rows,
                    .columns = streams * hidden,
                    .data = reinterpret_cast<const std::byte*>(fn.data())},
             .base = base.data(),
             .scale = scale.data(),
             .streams = streams},
        device{.fn = on_device.fn.data(),
               .base = on_device.base.data(),
               .scale = on_device.scale.data(),
               .streams = streams} {}

  std::vector<float> fn, base, scale, norm;
  struct {
    DeviceArray<float> fn, base, scale, norm;
  } on_device;
  HyperConnection host;
  DeviceHyperConnection device;
};

class HyperConnectionCuda : public GpuTest {
 protected:
  // Into the first block, over to the second, out of it, and to the head: all bits.
  void Check(int streams, int64_t hidden, int64_t tokens, uint32_t seed) {
    const int64_t n = streams, wide = n * hidden;
    const Weights first(streams, hidden, (2 + n) * n, 3, seed),
        second(streams, hidden, (2 + n) * n, 3, seed + 10), head(streams, hidden, n, 1, seed + 20);
    std::vector<float> residual = RandomNormal(tokens * wide, seed + 30, 1, Rounding::kBf16);
    DeviceArray<Bf16> device_residual(ToBits(residual));
    DeviceArray<Bf16> device_x(static_cast<size_t>(tokens * hidden));
    DeviceArray<float> device_post(static_cast<size_t>(tokens * n)),
        device_comb(static_cast<size_t>(tokens * n * n));
    DeviceArray<std::byte> scratch(
        static_cast<size_t>(BoundaryScratchBytes(tokens, hidden, streams)));
    std::vector<float> x(static_cast<size_t>(tokens * hidden)),
        post(static_cast<size_t>(tokens * n)), comb(static_cast<size_t>(tokens * n * n)),
        mix(static_cast<size_t>(tokens * (2 + n) * n));
    ThreadPool pool(2);
    const Context context(pool);
    const MatrixView<float> residual_rows{residual.data(), tokens, wide},
        x_rows{x.data(), tokens, hidden}, post_rows{post.data(), tokens, n},
        comb_rows{comb.data(), tokens, n * n};
    const auto compare = [&](const char* where) {
      SCOPED_TRACE(testing::Message() << where << ": " << tokens << " tokens of " << streams
                                      << " streams of " << hidden);
      EXPECT_TRUE(SameBits(ToFloats(device_residual.Read()), residual)) << "streams";
      EXPECT_TRUE(SameBits(ToFloats(device_x.Read()), x)) << "x";
      EXPECT_TRUE(SameBits(device_post.Read(), post)) << "post";
      EXPECT_TRUE(SameBits(device_comb.Read(), comb)) << "comb";
    };
    int step = 0;
    for (const Weights* entered : {&first, &second, static_cast<const Weights*>(nullptr)}) {
      const std::vector<float> y = RandomNormal(
          tokens * hidden, seed + 40 + static_cast<uint32_t>(step), 1, Rounding::kBf16);
      const DeviceArray<Bf16> device_y(ToBits(y));
      BoundaryArguments arguments{.tokens = tokens,
                                  .hidden = hidden,
                                  .streams = streams,
                                  .residual = device_residual.data(),
                                  .y = step > 0 ? device_y.data() : nullptr,
                                  .x = device_x.data(),
                                  .post = device_post.data(),
                                  .comb = device_comb.data(),
                                  .scratch = scratch.data()};
      if (step > 0) {
        HcPost(context, {y.data(), tokens, hidden}, post_rows, comb_rows, Rounding::kBf16,
               residual_rows);
      }
      if (entered != nullptr) {
        arguments.entered = entered->device;
        arguments.norm = entered->on_device.norm.data();
        arguments.norm_eps = kEps;
        HcPre(context, entered->host, residual_rows, Rounding::kBf16,
              {mix.data(), tokens, (2 + n) * n}, x_rows, post_rows, comb_rows);
        RmsNorm(context, x_rows, entered->norm.data(), kEps, Rounding::kBf16, x_rows);
      }
      ASSERT_TRUE(Finish(LaunchBoundary(arguments, stream.get())));
      compare(step == 0 ? "first" : step == 1 ? "between" : "last");
      ++step;
    }
    HcHead(context, head.host, residual_rows, Rounding::kBf16, {mix.data(), tokens, n}, x_rows);
    RmsNorm(context, x_rows, head.norm.data(), kEps, Rounding::kBf16, x_rows);
    ASSERT_TRUE(Finish(LaunchMergeStreams({.tokens = tokens,
                                           .hidden = hidden,
                                           .residual = device_residual.data(),
                                           .head = head.device,
                                           .norm = head.on_device.norm.data(),
                                           .norm_eps = kEps,
                                           .x = device_x.data(),
                                           .scratch = scratch.data()},
                                          stream.get())));
    compare("head");
    scratch.Read();  // its guards
  }
};

TEST_F(HyperConnectionCuda, GivesTheCpusBitsForFewTokensAndMany) {
  uint32_t seed = 1;
  for (const int64_t tokens : {1, 2, 7, 64, 65, 200}) {
    for (const int64_t hidden : {256, 1024}) Check(4, hidden, tokens, seed += 100);
  }
  Check(4, 4096, 3, seed += 100);
  Check(4, 4096, 72, seed += 100);
  Check(4, 7168, 5, seed += 100);
  Check(2, 512, 9, seed += 100);
  Check(1, 512, 9, seed += 100);
  Check(1, 264, 70, seed += 100);
}

TEST_F(HyperConnectionCuda, RefusesOtherShapes) {
  const auto launch = [&](int streams, int64_t hidden) {
    return LaunchBoundary({.tokens = 1, .hidden = hidden, .streams = streams}, stream.get());
  };
  EXPECT_EQ(launch(3, 256), cudaErrorInvalidValue);
  EXPECT_EQ(launch(4, 264), cudaErrorInvalidValue);
  EXPECT_EQ(launch(4, 8192 + 256), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace halfbyte
