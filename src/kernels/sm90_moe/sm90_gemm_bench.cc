// Times of the two grouped products on a GPU: sm90_gemm_bench [--steady] [TOKENS...]
//
// A layer of DeepSeek-V4-Flash (hidden 4096, intermediate 2048, 256 experts, 6 of them per token),
// its 3.6 GB of weights far beyond the L2 cache. First every width of tile alone (all experts have
// as many rows), then numbers of tokens under uniform random routing, another one in each launch.
// Figures are of short runs after a pause, or of a second of continuous load (--steady), which the
// board's power limit slows down. One JSON object per line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "device/cuda/cuda_bench.h"
#include "kernels/dispatch_plan/token_tiles.h"
#include "kernels/sm90_moe/sm90_gemm.h"
#include "numerics/bf16.h"

namespace halfbyte::sm90 {
namespace {

constexpr ExpertShape kShape{4096, 2048};
constexpr int32_t kExperts = 256, kTopK = 6;

// Random bytes that `shape` accepts, repeated.
DeviceBuffer Repeated(const std::vector<uint8_t>& piece, int64_t bytes, const char* what) {
  DeviceBuffer buffer = Must(DeviceBuffer::Allocate(bytes, what));
  const DeviceBuffer one = Must(DeviceBuffer::Upload(piece.data(), std::ssize(piece), what));
  for (int64_t at = 0; at < bytes; at += one.bytes()) {
    Must(CudaStatus(cudaMemcpy(buffer.data() + at, one.data(),
                               static_cast<size_t>(std::min(one.bytes(), bytes - at)),
                               cudaMemcpyDeviceToDevice),
                    what));
  }
  return buffer;
}
DeviceBuffer RandomExperts() {
  std::mt19937 random(1);
  std::vector<uint8_t> expert(static_cast<size_t>(kShape.bytes()));
  for (size_t i = 0; i < expert.size(); ++i) {
    const auto byte = static_cast<uint8_t>(random() >> 8);
    // Scales from 1/2 to 4.
    const bool scale = static_cast<int64_t>(i) % kBlockBytes >= kCodeBytes;
    expert[i] = scale ? static_cast<uint8_t>(64 + byte % 24) : byte;
  }
  return Repeated(expert, kShape.bytes() * kExperts, "experts");
}
DeviceBuffer RandomImage(int64_t bytes) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> piece(16 << 20);
  for (size_t i = 0; i < piece.size(); i += 2) {
    const Bf16 value = ToBf16(normal(random));
    std::memcpy(&piece[i], &value, 2);
  }
  return Repeated(piece, bytes, "image of x");
}

std::vector<int32_t> UniformRouting(int64_t tokens, std::mt19937& random) {
  std::vector<int32_t> rows(kExperts), experts(kExperts);
  std::iota(experts.begin(), experts.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int32_t j = 0; j < kTopK; ++j) {
      const auto pick = static_cast<size_t>(j) + random() % static_cast<uint32_t>(kExperts - j);
      std::swap(experts[static_cast<size_t>(j)], experts[pick]);
      ++rows[static_cast<size_t>(experts[static_cast<size_t>(j)])];
    }
  }
  return rows;
}

struct Tiles {
  DeviceBuffer tiles, count;
  int64_t experts = 0;  // that have rows
  int64_t rows = 0;     // without padding
};
Tiles MakeTiles(const std::vector<int32_t>& rows, GemmVariant variant) {
  std::vector<TokenTile> tiles;
  Tiles out;
  int32_t begin = 0;
  for (int32_t e = 0; e < kExperts; ++e) {
    const int32_t n = rows[static_cast<size_t>(e)];
    const int32_t parts = TilesOfExpert(n, MaxTileRows(variant));
    for (int32_t i = 0; i < parts; ++i) tiles.push_back(TileOfExpert(e, begin, n, i, parts));
    begin += (n + 7) / 8 * 8;
    out.experts += n > 0;
    out.rows += n;
  }
  const auto wide = std::stable_partition(tiles.begin(), tiles.end(), [&](const TokenTile& tile) {
    return tile.rows > WideTileRows(variant);
  });
  const auto count = static_cast<int32_t>(tiles.size());
  const int32_t counts[] = {count, static_cast<int32_t>(wide - tiles.begin())};
  out.tiles = Must(DeviceBuffer::Upload(tiles.data(), count * int64_t{sizeof(TokenTile)}, "tiles"));
  out.count = Must(DeviceBuffer::Upload(counts, sizeof(counts), "counts"));
  return out;
}

class Bench {
 public:
  explicit Bench(bool steady)
      : steady_(steady), stream_(Must(CudaStream::Create())), experts_(RandomExperts()) {
    constexpr int64_t kRows = 52 * 1024;
    image_ = RandomImage(ImageBytes(kRows, kShape.hidden));
    h_ = RandomImage(ImageBytes(kRows, kShape.intermediate));
    slots_ = Must(DeviceBuffer::Allocate(kRows * kShape.hidden * 4, "slot values"));
    const std::vector<float> ones(kExperts, 0.01f);
    alpha_ = Must(DeviceBuffer::Upload(ones.data(), kExperts * 4, "alpha"));
    Must(CudaStatus(PrepareGemms(), "kernels"));
  }

  void Width(int32_t rows, GemmVariant variant) {
    std::vector<Tiles> tiles;
    tiles.push_back(MakeTiles(std::vector<int32_t>(kExperts, rows), variant));
    Report("rows_per_expert", rows, variant, tiles, 2);
  }
  void Tokens(int64_t tokens, GemmVariant variant) {
    std::mt19937 random(3);
    std::vector<Tiles> tiles;
    const int routings = tokens < 8 ? 40 : tokens < 64 ? 16 : tokens < 1024 ? 4 : 2;
    for (int i = 0; i < routings; ++i) {
      tiles.push_back(MakeTiles(UniformRouting(tokens, random), variant));
    }
    Report("tokens", tokens, variant, tiles, routings);
  }

 private:
  cudaError_t GateUp(const Tiles& tiles, GemmVariant variant, Launch launch) {
    return LaunchGateUp({.gemm = Gemm(tiles),
                         .image = image_.as<uint8_t>(),
                         .alpha_gate = alpha_.as<float>(),
                         .alpha_up = alpha_.as<float>(),
                         .limit = 10,
                         .h_image = h_.as<uint8_t>()},
                        variant, launch, stream_.get());
  }
  cudaError_t Down(const Tiles& tiles, GemmVariant variant, Launch launch) {
    return LaunchDown({.gemm = Gemm(tiles),
                       .image = h_.as<uint8_t>(),
                       .alpha = alpha_.as<float>(),
                       .slot_values = slots_.as<float>()},
                      variant, launch, stream_.get());
  }
  GemmArguments Gemm(const Tiles& tiles) const {
    return {.experts = experts_.as<uint8_t>(),
            .shape = kShape,
            .tiles = tiles.tiles.as<TokenTile>(),
            .tile_count = tiles.count.as<int32_t>()};
  }

  // Microseconds of a graph of launches: the median of six runs after a pause, or of the second
  // half of 1.2 seconds without one.
  double Microseconds(int64_t launches, const std::function<cudaError_t(int64_t)>& launch) {
    const CudaGraph graph = GraphOf(stream_, launches, launch);
    return steady_ ? SteadyMicroseconds(stream_, graph, 1.2)
                   : ShortMicroseconds(stream_, graph, std::chrono::milliseconds(150));
  }

  void Report(const char* what, int64_t value, GemmVariant variant, const std::vector<Tiles>& tiles,
              int n) {
    const auto at = [&](int i) -> const Tiles& {
      return tiles[static_cast<size_t>(i) % tiles.size()];
    };
    const auto gate_up_launch = [&](int i) { return GateUp(at(i), variant, Launch::kDependent); };
    const auto down_launch = [&](int i) { return Down(at(i), variant, Launch::kDependent); };
    const double gate_up = Microseconds(n, gate_up_launch) / n;
    const double down = Microseconds(n, down_launch) / n;
    const double both =
        Microseconds(
            2 * n, [&](int i) { return i % 2 == 0 ? gate_up_launch(i / 2) : down_launch(i / 2); }) /
        n;
    double bytes = 0, rows = 0;
    for (const Tiles& t : tiles) {
      bytes += static_cast<double>(t.experts * kShape.bytes()) / static_cast<double>(tiles.size());
      rows += static_cast<double>(t.rows) / static_cast<double>(tiles.size());
    }
    const double flops = rows * 6 * static_cast<double>(kShape.hidden * kShape.intermediate);
    std::printf(
        "{\"state\": \"%s\", \"%s\": %ld, \"max_tile_rows\": %d, \"gate_up_us\": %.1f, "
        "\"down_us\": %.1f, "
        "\"both_us\": %.1f, \"weights_tb_s\": %.2f, \"tflop_s\": %.0f}\n",
        steady_ ? "steady" : "short", what, static_cast<long>(value), MaxTileRows(variant), gate_up,
        down, both, bytes / both * 1e-6, flops / both * 1e-6);
    std::fflush(stdout);
  }

  bool steady_;
  CudaStream stream_;
  DeviceBuffer experts_, image_, h_, slots_, alpha_;
};

void Run(bool steady, const std::vector<int64_t>& tokens) {
  Bench bench(steady);
  if (tokens.empty()) {
    for (const GemmVariant variant : kGemmVariants) {
      for (const int32_t rows : {8, 16, 32, 48, 64, 96, 112, 128, 192}) {
        if (rows <= MaxTileRows(variant)) bench.Width(rows, variant);
      }
    }
  }
  const std::vector<int64_t> all{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  for (const int64_t t : tokens.empty() ? all : tokens) {
    bench.Tokens(t, GemmVariantFor(t * kTopK, kExperts));
  }
}

}  // namespace
}  // namespace halfbyte::sm90

int main(int argc, char** argv) {
  const auto device = halfbyte::CudaDevice::Open();
  if (!device) {
    std::fprintf(stderr, "sm90_gemm_bench: %s\n", device.error().message.c_str());
    return 1;
  }
  std::printf("{\"device\": \"%s\", \"multiprocessors\": %d}\n", device->name.c_str(),
              device->multiprocessors);
  std::vector<int64_t> tokens;
  const bool steady = argc > 1 && std::string_view(argv[1]) == "--steady";
  for (int i = steady ? 2 : 1; i < argc; ++i) tokens.push_back(std::atol(argv[i]));
  halfbyte::sm90::Run(steady, tokens);
}
