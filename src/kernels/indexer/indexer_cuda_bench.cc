// Times of choosing entries on a GPU: indexer_cuda_bench
//
// V4-Flash's indexer (64 heads x 128, top 512, one entry for four tokens): decode of some sequences
// of one length, and a chunk of 8,192 tokens that ends there. Each figure is one operation's share
// of a captured graph of several of them, as many layers with keys of their own, after the L2 cache
// was filled with something else; the median of some replays. `select` is all of it, the others its
// parts, launched alone. One JSON object per line; microseconds.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "device/cuda/cuda_bench.h"
#include "kernels/indexer/index_score_cuda.h"
#include "kernels/indexer/indexer_cuda.h"
#include "kernels/indexer/top_k_cuda.h"

namespace halfbyte {
namespace {

constexpr int64_t kHeads = 64, kDim = 128, kRate = 4, kTopK = 512, kPairs = 32;
constexpr int64_t kRowsPerPage = 64, kPageBytes = kRowsPerPage * 68;
constexpr int64_t kPages = 128 * 1024;
constexpr int64_t kMostTokens = 8192, kMostContext = 1024 * 1024;
constexpr int64_t kOtherBytes = 256 << 20;

DeviceBuffer Repeated(const std::vector<uint8_t>& piece, int64_t bytes) {
  DeviceBuffer buffer = Must(DeviceBuffer::Allocate(bytes, "input"));
  for (int64_t at = 0; at < bytes; at += std::ssize(piece)) {
    Must(cudaMemcpy(buffer.data() + at, piece.data(),
                    static_cast<size_t>(std::min<int64_t>(std::ssize(piece), bytes - at)),
                    cudaMemcpyHostToDevice));
  }
  return buffer;
}
DeviceBuffer RandomPages() {
  std::mt19937 random(1);
  std::vector<uint8_t> piece(4096 * kPageBytes);
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<uint8_t>(random() >> 8);
    const bool scale = static_cast<int64_t>(i) % kPageBytes >= kRowsPerPage * 64;
    piece[i] = scale ? static_cast<uint8_t>(124 + byte % 2) : byte;
  }
  return Repeated(piece, kPages * kPageBytes);
}
DeviceBuffer RandomQueries() {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> piece(16 << 20);
  for (size_t i = 0; i < piece.size(); i += 2) {
    const Bf16 value = ToBf16(normal(random));
    std::memcpy(&piece[i], &value, 2);
  }
  return Repeated(piece, kMostTokens * kHeads * kDim * 2);
}
DeviceBuffer RandomFloats(int64_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> piece(4 << 20);
  for (size_t i = 0; i < piece.size(); i += 4) {
    const float value = normal(random);
    std::memcpy(&piece[i], &value, 4);
  }
  return Repeated(piece, count * 4);
}

class Bench {
 public:
  Bench()
      : stream_(Must(CudaStream::Create())),
        pages_(RandomPages()),
        queries_(RandomQueries()),
        weights_(RandomFloats(kMostTokens * kHeads)),
        angles_(RandomFloats(kMostContext * kPairs)),
        selected_(Must(DeviceBuffer::Allocate(kMostTokens * kTopK * 4, "selected"))),
        counts_(Must(DeviceBuffer::Allocate(kMostTokens * 4, "counts"))),
        other_(Must(DeviceBuffer::Allocate(kOtherBytes, "other"))) {}

  // `sequences` of them, the last `tokens` each of a context.
  void Run(int64_t sequences, int64_t tokens, int64_t context, int64_t max_entries) {
    const int layers = tokens > 1 ? 3 : 20;
    const int64_t rows = sequences * tokens, pages = context / kRate / kRowsPerPage;
    std::vector<int32_t> positions, owners, table;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t i = 0; i < tokens; ++i) {
        positions.push_back(static_cast<int32_t>(context - tokens + i));
        owners.push_back(static_cast<int32_t>(s));
      }
    }
    std::vector<int32_t> ids(kPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(4));
    for (int64_t i = 0; i < layers * sequences * pages; ++i) {
      table.push_back(ids[static_cast<size_t>(i % kPages)]);
    }
    const std::vector<int32_t> begin(static_cast<size_t>(sequences),
                                     static_cast<int32_t>(context - tokens));
    const DeviceBuffer at = Upload(positions), of = Upload(owners), blocks = Upload(table),
                       begins = Upload(begin);
    const DeviceBuffer scratch =
        Must(DeviceBuffer::Allocate(SelectScratchBytes(rows, kHeads, max_entries), "scratch"));
    const auto arguments = [&](int64_t layer) {
      return SelectArguments{
          .tokens = {.count = rows, .positions = at.as<int32_t>(), .sequences = of.as<int32_t>()},
          .sequences = {.count = sequences,
                        .first_positions = begins.as<int32_t>(),
                        .context_blocks = blocks.as<int32_t>() + layer * sequences * pages,
                        .context_stride = pages},
          .rope = {angles_.as<float>(), angles_.as<float>(), kPairs},
          .queries = queries_.as<Bf16>(),
          .weights = weights_.as<float>(),
          .weight_factor = 0x1p-6f,
          .heads = kHeads,
          .dim = kDim,
          .rate = kRate,
          .top_k = kTopK,
          .max_entries = max_entries,
          .keys = {pages_.data(), kRowsPerPage, 64, 4},
          .selected = selected_.as<int32_t>(),
          .counts = counts_.as<int32_t>(),
          .scratch = scratch.data()};
    };
    const double select =
        Time(layers, [&](int64_t l) { return LaunchSelect(arguments(l), stream_.get()); });
    std::printf(
        "{\"sequences\":%lld,\"tokens\":%lld,\"context\":%lld,\"max_entries\":%lld,"
        "\"select\":%.2f",
        static_cast<long long>(sequences), static_cast<long long>(tokens),
        static_cast<long long>(context), static_cast<long long>(max_entries), select);
    PrintParts(arguments, layers, std::min<int64_t>(rows, 512));
    std::printf("}\n");
    std::fflush(stdout);
  }

 private:
  // Of the last `count` rows.
  template <class Arguments>
  void PrintParts(const Arguments& arguments, int layers, int64_t count) {
    const SelectArguments any = arguments(0);
    const int64_t stride = (any.max_entries + 31) / 32 * 32, first = any.tokens.count - count;
    const DeviceBuffer packed =
        Must(DeviceBuffer::Allocate(count * PackedIndexQueryBytes(kHeads), "packed"));
    const DeviceBuffer scores = Must(DeviceBuffer::Allocate(count * stride * 4, "scores"));
    const auto scored = [&](int64_t layer) {
      const SelectArguments a = arguments(layer);
      return IndexScoreArguments{.tokens = a.tokens,
                                 .first = first,
                                 .count = count,
                                 .sequences = a.sequences,
                                 .rope = a.rope,
                                 .queries = a.queries,
                                 .weights = a.weights,
                                 .weight_factor = a.weight_factor,
                                 .heads = kHeads,
                                 .dim = kDim,
                                 .rate = kRate,
                                 .skip = kTopK,
                                 .max_entries = a.max_entries,
                                 .keys = a.keys,
                                 .packed = packed.data(),
                                 .scores = scores.as<uint32_t>(),
                                 .stride = stride};
    };
    const double pack =
        Time(layers, [&](int64_t l) { return LaunchPackIndexQueries(scored(l), stream_.get()); });
    const double score =
        Time(layers, [&](int64_t l) { return LaunchIndexScores(scored(l), stream_.get()); });
    const double top_k = Time(layers, [&](int64_t) {
      return LaunchTopK({.positions = any.tokens.positions + first,
                         .tokens = count,
                         .rate = kRate,
                         .top_k = kTopK,
                         .scores = scores.as<uint32_t>(),
                         .stride = stride,
                         .selected = selected_.as<int32_t>(),
                         .counts = counts_.as<int32_t>()},
                        stream_.get());
    });
    std::printf(",\"rows_of_parts\":%lld,\"pack\":%.2f,\"scores\":%.2f,\"top_k\":%.2f",
                static_cast<long long>(count), pack, score, top_k);
  }

  // Of one of `layers` launches in a graph.
  double Time(int layers, const std::function<cudaError_t(int64_t)>& launch) {
    return ColdMicroseconds(stream_, GraphOf(stream_, layers, launch), other_, 7) / layers;
  }

  CudaStream stream_;
  DeviceBuffer pages_, queries_, weights_, angles_, selected_, counts_, other_;
};

void RunAll() {
  const CudaDevice device = Must(CudaDevice::Open());
  Bench bench;
  for (const int64_t context : {1024, 4096, 32 * 1024, 128 * 1024}) {
    for (const int64_t sequences : {1, 8, 32, 128}) {
      bench.Run(sequences, 1, context, context / kRate);
    }
  }
  bench.Run(1, 1, 32 * 1024, 262144);  // in a graph that has room for more
  bench.Run(128, 1, 4096, 262144);
  bench.Run(1, 1, 1024 * 1024, 262144);
  for (const int64_t context : {8 * 1024, 32 * 1024, 128 * 1024}) {
    bench.Run(1, kMostTokens, context, context / kRate);
  }
}

}  // namespace
}  // namespace halfbyte

int main() { halfbyte::RunAll(); }
