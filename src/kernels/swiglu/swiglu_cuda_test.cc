#include "kernels/swiglu/swiglu_cuda.h"

#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

class SwigluCuda : public GpuTest {};

// Numbers of all sizes: where exp overflows and vanishes, and beyond the clamp.
TEST_F(SwigluCuda, GivesTheCpusBits) {
  for (const SwigluParams& params : {SwigluParams{.limit = 10}, SwigluParams{},
                                     SwigluParams{.limit = 7, .alpha = 1.702f, .add = 1}}) {
    for (const int64_t count : {4, 128, 100'000}) {
      std::vector<float> gate = RandomNormal(count, 1, 4), up = RandomNormal(count, 2, 6);
      for (size_t i = 0; i < gate.size(); i += 7) gate[i] *= 30;
      gate[0] = -200;
      gate[1] = 200;
      gate[2] = 0;
      up[3] = -0.0f;
      const DeviceArray<float> device_gate(gate), device_up(up);
      DeviceArray<Bf16> h(static_cast<size_t>(count));
      ASSERT_TRUE(Finish(LaunchSwiglu({.limit = params.limit,
                                       .alpha = params.alpha,
                                       .add = params.add,
                                       .gate = device_gate.data(),
                                       .up = device_up.data(),
                                       .count = count,
                                       .h = h.data()},
                                      stream.get())));
      std::vector<float> want(gate.size());
      ThreadPool pool(1);
      SwigluRow(Context(pool), params,
                {.gate = gate.data(),
                 .up = up.data(),
                 .h = want.data(),
                 .n = count,
                 .rounding = Rounding::kBf16});
      const std::vector<Bf16> got = h.Read();
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].bits, ToBf16(want[i]).bits)
            << i << ": gate " << gate[i] << ", up " << up[i] << ": " << ToFloat(got[i]) << " where "
            << want[i] << " belongs";
      }
    }
  }
}

}  // namespace
}  // namespace halfbyte
