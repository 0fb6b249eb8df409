// What the tests of the layer on a GPU share: a TestLayer run on the device, and its agreement with
// the CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "device/cuda/gpu_test.h"
#include "moe/cuda/cuda_moe_layer.h"
#include "moe/cuda/sm90_moe_kernels.h"
#include "moe/moe_test_layer.h"

namespace halfbyte {

inline std::vector<Bf16> ToBf16Rows(const std::vector<float>& rows) {
  std::vector<Bf16> result;
  for (const float x : rows) result.push_back(ToBf16(x));
  return result;
}

// Device copies of an input and the buffers of a call.
struct DeviceCall {
  explicit DeviceCall(const TestInput& input, CudaMoeOutput output = CudaMoeOutput::kF32)
      : hidden(ToBf16Rows(input.hidden)),
        ids(input.ids),
        weights(input.weights),
        out(input.hidden.size() * (output == CudaMoeOutput::kF32 ? 2 : 1)),
        call{.hidden = hidden.data(),
             .topk_ids = ids.data(),
             .topk_weights = weights.data(),
             .tokens = input.shape.tokens,
             .top_k = input.shape.top_k,
             .out = out.data(),
             .output = output} {}

  // Another input of the same shape, in the same buffers.
  void Write(const TestInput& input) {
    hidden.Write(ToBf16Rows(input.hidden));
    ids.Write(input.ids);
    weights.Write(input.weights);
  }
  std::vector<float> ReadOut() {
    const std::vector<uint16_t> halves = out.Read();
    std::vector<float> values(halves.size() / 2);
    if (call.output == CudaMoeOutput::kF32) {
      std::memcpy(values.data(), halves.data(), halves.size() * sizeof(uint16_t));
      return values;
    }
    values.clear();
    for (const uint16_t bits : halves) values.push_back(ToFloat(Bf16{bits}));
    return values;
  }

  DeviceArray<Bf16> hidden;
  DeviceArray<int32_t> ids;
  DeviceArray<float> weights;
  DeviceArray<uint16_t> out;
  CudaMoeCall call;
};

// A workspace of exactly the bytes that it asks for, poisoned, between guards.
struct TestWorkspace {
  explicit TestWorkspace(const MoeLimits& limits)
      : memory(static_cast<size_t>(CudaMoeWorkspace::Bytes(Sm90MoeKernels(), limits))) {
    auto made = CudaMoeWorkspace::In(Sm90MoeKernels(), memory.data(), std::ssize(memory), limits);
    HB_CHECK(made.has_value(), "{}", made.error().message);
    workspace = *std::move(made);
  }
  DeviceArray<std::byte> memory;
  CudaMoeWorkspace workspace;
};

class CudaMoeTest : public GpuTest {
 protected:
  CudaMoeLayer Layer(const TestLayer& layer, const MoeParams& params,
                     const ExpertPlacement* placement = nullptr,
                     const MoeKernels* kernels = nullptr) {
    const auto everything = ExpertPlacement::Single(static_cast<int32_t>(layer.experts.size()));
    const ExpertPlacement& used = placement != nullptr ? *placement : everything;
    std::vector<ExpertWeights> local;
    for (int32_t e = 0; e < used.local_experts(); ++e) {
      local.push_back(layer.experts[static_cast<size_t>(Index(used.ToGlobal(LocalExpert{e})))]);
    }
    auto made = CudaMoeLayer::Create(device, params, used, local, "test layer", {}, kernels);
    HB_CHECK(made.has_value(), "{}", made.error().message);
    return *std::move(made);
  }

  std::vector<float> Run(const CudaMoeLayer& layer, const TestInput& input,
                         const CudaMoeWorkspace& workspace,
                         CudaMoeOutput output = CudaMoeOutput::kF32) {
    DeviceCall call(input, output);
    EXPECT_TRUE(Finish(layer.Run(stream.get(), call.call, workspace)));
    return call.ReadOut();
  }
  // With a workspace for just this input.
  std::vector<float> Run(const CudaMoeLayer& layer, const TestInput& input,
                         CudaMoeOutput output = CudaMoeOutput::kF32) {
    TestWorkspace own({input.shape.tokens, input.shape.top_k, layer.placement().local_experts(),
                       input.shape.hidden, input.shape.intermediate});
    const std::vector<float> out = Run(layer, input, own.workspace, output);
    own.memory.Read();  // its guards
    return out;
  }

  // In w4a16 by kRef, whose products are exact as the device's are.
  static std::vector<float> RunOnCpu(const TestLayer& layer, MoeParams params,
                                     const TestInput& input) {
    if (params.arithmetic == Arithmetic::kW4a16) params.arithmetic = Arithmetic::kRef;
    return layer.Run(params, input, {.threads = AvailableProcessors(), .max_tokens = 512});
  }

  // Both sides round at the same places, but sum in different orders, so a few values of h become
  // the neighbouring bf16 number (a step of 2^-7), and in w4a4 a few of those the neighbouring code
  // (a step of up to a half). One such step may show in a row as far as that h dominates it; over
  // all rows moe-layer.md §10 allows 1 - cos of 1e-6 and 1e-5, a relative error of
  // sqrt(2 (1 - cos)).
  static void ExpectAgreement(const std::vector<float>& value, const std::vector<float>& reference,
                              const MoeParams& params) {
    const bool quantized = params.arithmetic == Arithmetic::kW4a4;
    const double row_allowed = quantized ? 0.25 : 0x1p-7, allowed = quantized ? 4.5e-3 : 1.4e-3;
    const auto columns = static_cast<size_t>(params.hidden);
    ASSERT_EQ(value.size(), reference.size());
    double worst = 0, all_errors = 0, all_sizes = 0;
    for (size_t row = 0; row < value.size(); row += columns) {
      double error = 0, size = 0;
      for (size_t i = row; i < row + columns; ++i) {
        error += (double{value[i]} - reference[i]) * (double{value[i]} - reference[i]);
        size += double{reference[i]} * reference[i];
      }
      all_errors += error;
      all_sizes += size;
      if (size == 0) {
        ASSERT_EQ(error, 0) << "row " << row / columns << " of zeros";
        continue;
      }
      const double relative = std::sqrt(error / size);
      ASSERT_LE(relative, row_allowed) << "row " << row / columns;  // false for NaN
      worst = std::max(worst, relative);
    }
    const double total = all_sizes == 0 ? 0 : std::sqrt(all_errors / all_sizes);
    EXPECT_LE(total, allowed);
    std::printf("%zu rows of %zu, %s: relative error %.2g, of the worst row %.2g\n",
                value.size() / columns, columns, quantized ? "w4a4" : "w4a16", total, worst);
  }
  void Compare(const TestLayer& layer, const MoeParams& params, const TestInput& input) {
    ExpectAgreement(Run(Layer(layer, params), input), RunOnCpu(layer, params, input), params);
  }

  // Bits, so that NaN and zeros of either sign count.
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  // w4a16, and w4a4 with static scales and with each row's own.
  static std::vector<MoeParams> AllParams(const TestLayer& layer) {
    MoeParams with_scales = layer.Params(Arithmetic::kW4a4);
    with_scales.gate_up_input_scale = GlobalScale::FromAmax(8);
    with_scales.down_input_scale = GlobalScale::FromAmax(40);
    return {layer.Params(Arithmetic::kW4a16), layer.Params(Arithmetic::kW4a4), with_scales};
  }
};

}  // namespace halfbyte
