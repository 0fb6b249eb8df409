// Times of the linears of DeepSeek-V4-Flash on a GPU: sm90_dense_bench [--steady] [TOKENS...]
//
// Each launch reads other weights, so that they come from memory, not from the L2 cache; launches
// follow each other in a graph. Figures are of short runs after a pause, or of a second of
// continuous load (--steady), which the board's power limit slows down. One JSON object per line;
// share: of the time that reading the weights at 4.65 TB/s or multiplying at 790 TFLOP/s takes,
// whichever is longer (hopper-moe.md §15).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "device/cuda/cuda_bench.h"
#include "kernels/sm90_dense/dense_layout.h"
#include "kernels/sm90_dense/sm90_dense.h"
#include "numerics/bf16.h"

namespace halfbyte::sm90 {
namespace {

constexpr double kBytesPerSecond = 4.65e12, kFlopsPerSecond = 790e12;
constexpr int64_t kMostTokens = 8192;

struct Linear {
  DenseShape shape;
  DenseOutput output = DenseOutput::kBf16;
};
struct Launchable {
  const char* name;
  std::vector<Linear> linears;
  int64_t most_tokens = kMostTokens;
};
std::vector<Launchable> Launchables() {
  constexpr DenseFormat kFp8 = DenseFormat::kFp8, kHalf = DenseFormat::kBf16;
  constexpr DenseOutput kF32 = DenseOutput::kF32;
  return {{"P1 of C4",
           {{{kFp8, 1024, 4096, 1}},
            {{kFp8, 512, 4096, 1}},
            {{kHalf, 1024, 4096, 1}, kF32},
            {{kHalf, 1024, 4096, 1}, kF32},
            {{kHalf, 256, 4096, 1}, kF32},
            {{kHalf, 256, 4096, 1}, kF32},
            {{kHalf, 64, 4096, 1}, DenseOutput::kF32OfBf16}}},
          {"q_b and index q_b", {{{kFp8, 32768, 1024, 1}}, {{kFp8, 8192, 1024, 1}}}},
          {"o_a", {{{kFp8, 8192, 4096, 8}}}},
          {"o_b", {{{kFp8, 4096, 8192, 1}}}},
          {"router", {{{kHalf, 256, 4096, 1}, kF32}}},
          {"shared gate and up", {{{kFp8, 2048, 4096, 1}}, {{kFp8, 2048, 4096, 1}}}},
          {"shared down", {{{kFp8, 4096, 2048, 1}}}},
          {"head", {{{kHalf, 129280, 4096, 1}, kF32}}, 128}};
}

// Packed weights: any codes, or normal numbers; scales behind them.
class RandomWeights {
 public:
  RandomWeights() : codes_(16 << 20), numbers_(16 << 20) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    for (uint8_t& code : codes_) code = static_cast<uint8_t>(random());
    for (size_t i = 0; i < numbers_.size(); i += 2) {
      const Bf16 value = ToBf16(normal(random));
      std::memcpy(&numbers_[i], &value, 2);
    }
  }
  void Fill(const DenseShape& shape, std::byte* to) const {
    const bool fp8 = shape.format == DenseFormat::kFp8;
    const std::vector<uint8_t>& piece = fp8 ? codes_ : numbers_;
    for (int64_t at = 0; at < shape.scales_offset(); at += std::ssize(piece)) {
      Copy(to + at, piece.data(), std::min(std::ssize(piece), shape.scales_offset() - at));
    }
    if (!fp8) return;
    const std::vector<uint32_t> scales(static_cast<size_t>(shape.blocks() * kDenseScaleBytes / 4),
                                       DenseScaleWord(127 - 12));
    Copy(to + shape.scales_offset(), scales.data(), std::ssize(scales) * 4);
  }

 private:
  static void Copy(std::byte* to, const void* from, int64_t bytes) {
    Must(CudaStatus(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
                    "weights"));
  }
  std::vector<uint8_t> codes_, numbers_;
};

class Bench {
 public:
  explicit Bench(bool steady) : steady_(steady), stream_(Must(CudaStream::Create())) {
    Must(CudaStatus(PrepareDense(), "kernels"));
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<Bf16> piece(8 << 20);
    for (Bf16& x : piece) x = ToBf16(normal(random));
    x_ = Must(DeviceBuffer::Allocate(kMostTokens * 32768 * 2, "x"));
    for (int64_t at = 0; at < x_.bytes(); at += std::ssize(piece) * 2) {
      Must(CudaStatus(
          cudaMemcpy(x_.data() + at, piece.data(),
                     static_cast<size_t>(std::min<int64_t>(std::ssize(piece) * 2, x_.bytes() - at)),
                     cudaMemcpyHostToDevice),
          "x"));
    }
    y_ = Must(DeviceBuffer::Allocate(kMostTokens * 40960 * 4, "y"));
  }

  void Run(const Launchable& what, const std::vector<int64_t>& tokens) {
    std::vector<DenseWeight> weights;
    int64_t bytes = 0, rows = 0;
    double products = 0;
    for (const Linear& linear : what.linears) {
      const DenseShape& s = linear.shape;
      weights.push_back({s.format, s.rows, s.columns, s.groups});
      bytes += (s.bytes() + 127) / 128 * 128;
      rows += s.rows;
      products += static_cast<double>(s.rows * s.columns);
    }
    const int64_t sets = std::clamp<int64_t>((int64_t{400} << 20) / bytes, 2, 24);
    const DeviceBuffer packed = Must(DeviceBuffer::Allocate(sets * bytes, "weights"));
    for (int64_t set = 0, at = 0; set < sets; ++set) {
      for (const Linear& linear : what.linears) {
        random_.Fill(linear.shape, reinterpret_cast<std::byte*>(packed.data()) + at);
        at += (linear.shape.bytes() + 127) / 128 * 128;
      }
    }
    const DeviceBuffer scratch =
        Must(DeviceBuffer::Allocate(DenseScratchBytes(weights, kMostTokens) + 128, "scratch"));
    Must(
        CudaStatus(cudaMemset(scratch.data(), 0, static_cast<size_t>(scratch.bytes())), "scratch"));
    for (const int64_t t : tokens) {
      if (t > what.most_tokens) continue;
      const int64_t launches = t > 512 ? std::min<int64_t>(sets, 6) : 2 * sets;
      const auto launch = [&](int64_t set) {
        std::vector<DenseProduct> list;
        const std::byte* at = reinterpret_cast<const std::byte*>(packed.data()) + set * bytes;
        auto* y = reinterpret_cast<std::byte*>(y_.data());
        for (size_t i = 0; i < weights.size(); ++i) {
          DenseWeight weight = weights[i];
          weight.packed = at;
          list.push_back({weight, y, what.linears[i].output});
          at += (what.linears[i].shape.bytes() + 127) / 128 * 128;
          y += t * weight.rows * (what.linears[i].output == DenseOutput::kBf16 ? 2 : 4);
        }
        return LaunchDense({.x = reinterpret_cast<const Bf16*>(x_.data()),
                            .tokens = t,
                            .products = list,
                            .scratch = reinterpret_cast<std::byte*>(scratch.data())},
                           stream_.get());
      };
      const double us = Microseconds(launches, [&](int64_t i) { return launch(i % sets); }) /
                        static_cast<double>(launches);
      const double flops = 2 * products * static_cast<double>(t);
      const double limit =
          std::max(static_cast<double>(bytes) / kBytesPerSecond, flops / kFlopsPerSecond) * 1e6;
      std::printf(
          "{\"state\": \"%s\", \"what\": \"%s\", \"tokens\": %ld, \"us\": %.2f, \"tb_s\": %.2f, "
          "\"tflop_s\": %.0f, \"limit_us\": %.2f, \"share\": %.2f}\n",
          steady_ ? "steady" : "short", what.name, static_cast<long>(t), us,
          static_cast<double>(bytes) / us * 1e-6, flops / us * 1e-6, limit, limit / us);
      std::fflush(stdout);
    }
  }

 private:
  // Microseconds of a graph of launches: the median of six runs after a pause, or of the second
  // half of a second without one.
  double Microseconds(int64_t launches, const std::function<cudaError_t(int64_t)>& launch) {
    const CudaGraph graph = GraphOf(stream_, launches, launch);
    return steady_ ? SteadyMicroseconds(stream_, graph, 1.0)
                   : ShortMicroseconds(stream_, graph, std::chrono::milliseconds(50));
  }

  bool steady_;
  CudaStream stream_;
  RandomWeights random_;
  DeviceBuffer x_, y_;
};

}  // namespace
}  // namespace halfbyte::sm90

int main(int argc, char** argv) {
  const auto device = halfbyte::CudaDevice::Open();
  if (!device) {
    std::fprintf(stderr, "sm90_dense_bench: %s\n", device.error().message.c_str());
    return 1;
  }
  std::printf("{\"device\": \"%s\", \"multiprocessors\": %d}\n", device->name.c_str(),
              device->multiprocessors);
  const bool steady = argc > 1 && std::string_view(argv[1]) == "--steady";
  std::vector<int64_t> tokens;
  for (int i = steady ? 2 : 1; i < argc; ++i) tokens.push_back(std::atol(argv[i]));
  if (tokens.empty()) tokens = {1, 8, 32, 128, 2048, 8192};
  halfbyte::sm90::Bench bench(steady);
  for (const auto& what : halfbyte::sm90::Launchables()) bench.Run(what, tokens);
}
