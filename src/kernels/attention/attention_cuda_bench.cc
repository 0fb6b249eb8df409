// Times of attention on a GPU: attention_cuda_bench
//
// V4-Flash (64 heads x 512, window 128): decode of some sequences of one length, and chunks of a
// prompt; C4 layers with 512 selected entries, C128 layers with all, layers with the window alone.
// A figure is one operation's share of a captured graph of several, as many layers with rows of
// their own, after the L2 cache was filled with something else; the median of some replays. `read`
// and `math` are the shares of it that bytes take at 4.6 TB/s (each token's rows once) and products
// at 790 TFLOP/s. One JSON object per line; microseconds.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "device/cuda/cuda_bench.h"
#include "kernels/attention/attention_cuda.h"

namespace halfbyte {
namespace {

constexpr int64_t kHeads = 64, kDim = 512, kRope = 64, kWindow = 128, kTopK = 512;
constexpr int64_t kMain = 576, kRow = 584, kPageRows = 64, kPages = 8192;  // 306 MB
constexpr int64_t kMostTokens = 8192, kMostContext = 128 * 1024;
constexpr int64_t kOtherBytes = 256 << 20;

// Valid rows: any code but NaN, rotary numbers near 1, scales 2^-3.
DeviceBuffer RandomPages() {
  std::mt19937 random(1);
  std::vector<uint8_t> page(kPageRows * kRow, 124);
  std::vector<uint8_t> all;
  for (int64_t p = 0; p < kPages; ++p) {
    if (p < 64) {
      for (int64_t i = 0; i < kPageRows * kMain; ++i) {
        const int64_t at = i % kMain;
        const auto byte = static_cast<uint8_t>(random() >> 8);
        page[static_cast<size_t>(i)] = at < kDim - kRope ? (byte % 128 == 127 ? 0 : byte)
                                       : at % 2 == 0     ? byte
                                                     : static_cast<uint8_t>(0x3f | byte % 2 << 7);
      }
      all.insert(all.end(), page.begin(), page.end());
    } else {
      all.insert(all.end(), all.begin() + (p % 64) * std::ssize(page),
                 all.begin() + (p % 64 + 1) * std::ssize(page));
    }
  }
  return Upload(all);
}

class Bench {
 public:
  Bench() : stream_(Must(CudaStream::Create())), pool_(RandomPages()) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<Bf16> queries(static_cast<size_t>(kMostTokens * kHeads * kDim));
    for (size_t i = 0; i < queries.size(); ++i) {
      queries[i] = i < 1 << 20 ? ToBf16(normal(random)) : queries[i - (1 << 20)];
    }
    queries_ = Upload(queries);
    angles_ = Upload(std::vector<float>(kMostContext * kRope / 2, 0.7f));
    sinks_ = Upload(std::vector<float>(kHeads, 0.5f));
    attended_ = Must(DeviceBuffer::Allocate(queries_.bytes(), "attended"));
    other_ = Must(DeviceBuffer::Allocate(kOtherBytes, "other"));
  }

  // The last `tokens` of each of `sequences` that have `context`.
  void Run(int64_t sequences, int64_t tokens, int64_t context, int64_t rate) {
    const int layers = tokens > 1 ? 2 : 16;
    const int64_t rows = sequences * tokens;
    const int64_t page_rows = rate == 128 ? 2 : kPageRows;
    const int64_t pages = context / kPageRows + 1;
    std::mt19937 random(3);
    std::vector<int32_t> positions, owners, selected, counts, table;
    int64_t keys = 0, most = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t position = context - tokens + i;
        positions.push_back(static_cast<int32_t>(position));
        owners.push_back(static_cast<int32_t>(s));
        int64_t entries = rate == 0 ? 0 : (position + 1) / rate;
        if (rate == 4) {
          const int64_t visible = entries;
          entries = std::min(entries, kTopK);
          counts.push_back(static_cast<int32_t>(entries));
          for (int64_t k = 0; k < kTopK; ++k) {
            const int64_t begin = k * visible / kTopK, end = (k + 1) * visible / kTopK;
            selected.push_back(visible <= kTopK
                                   ? static_cast<int32_t>(k)
                                   : static_cast<int32_t>(begin + random() % (end - begin)));
          }
        }
        const int64_t all = std::min(kWindow, position + 1) + entries;
        keys += all;
        most = std::max(most, all);
      }
    }
    for (int64_t i = 0; i < layers * sequences * pages; ++i) {
      table.push_back(static_cast<int32_t>(random() % kPages));
    }
    const DeviceBuffer at = Upload(positions), of = Upload(owners), blocks = Upload(table),
                       starts = Upload(std::vector<int32_t>(static_cast<size_t>(sequences), 0));
    if (rate != 4) selected = counts = {0};
    const DeviceBuffer chosen = Upload(selected), chosen_counts = Upload(counts);
    const DeviceBuffer scratch =
        Must(DeviceBuffer::Allocate(AttentionScratchBytes(rows, kHeads, most) + 256, "scratch"));
    const CudaGraph graph = GraphOf(stream_, layers, [&](int64_t layer) {
      const int32_t* pages_of_layer = blocks.as<int32_t>() + layer * sequences * pages;
      AttentionArguments a{
          .tokens = {.count = rows, .positions = at.as<int32_t>(), .sequences = of.as<int32_t>()},
          .sequences = {.count = sequences,
                        .replay_starts = starts.as<int32_t>(),
                        .context_blocks = pages_of_layer,
                        .context_stride = pages,
                        .window_pages = pages_of_layer,
                        .window_stride = pages},
          .rope = {angles_.as<float>(), angles_.as<float>(), kRope / 2},
          .queries = queries_.as<Bf16>(),
          .heads = kHeads,
          .head_dim = kDim,
          .norm_eps = 1e-6f,
          .window = kWindow,
          .rate = rate,
          .window_rows = {pool_.data(), kPageRows, kMain, kRow - kMain},
          .entry_rows = {pool_.data(), page_rows, kMain, kRow - kMain},
          .sinks = sinks_.as<float>(),
          .max_keys = most,
          .attended = attended_.as<Bf16>(),
          .scratch = scratch.data()};
      if (rate == 4) {
        a.selected = chosen.as<int32_t>();
        a.selected_counts = chosen_counts.as<int32_t>();
        a.selected_stride = kTopK;
      }
      return LaunchAttention(a, stream_.get());
    });
    const double us = ColdMicroseconds(stream_, graph, other_, 9) / layers;
    const double flop = 4.0 * static_cast<double>(keys * kHeads * kDim);
    const double bytes = static_cast<double>(keys * kRow + rows * kHeads * kDim * 4);
    std::printf(
        "{\"sequences\":%ld,\"tokens\":%ld,\"context\":%ld,\"rate\":%ld,\"keys\":%ld,"
        "\"us\":%.2f,\"tflops\":%.1f,\"read\":%.2f,\"math\":%.2f}\n",
        long{sequences}, long{tokens}, long{context}, long{rate}, long{keys / rows}, us,
        flop / us / 1e6, bytes / 4.6e6 / us, flop / 790e6 / us);
    std::fflush(stdout);
  }

 private:
  CudaStream stream_;
  DeviceBuffer pool_, queries_, angles_, sinks_, attended_, other_;
};

}  // namespace
}  // namespace halfbyte

int main() {
  using halfbyte::Must;
  const halfbyte::CudaDevice device = Must(halfbyte::CudaDevice::Open());
  halfbyte::Bench bench;
  for (const int64_t sequences : {1, 8, 32, 128}) {
    bench.Run(sequences, 1, 32 << 10, 4);
    for (const int64_t context : {1 << 10, 32 << 10, 128 << 10}) {
      bench.Run(sequences, 1, context, 128);
    }
    bench.Run(sequences, 1, 32 << 10, 0);
  }
  for (const int64_t tokens : {2048, 8192}) {
    bench.Run(1, tokens, 32 << 10, 4);
    bench.Run(1, tokens, 32 << 10, 128);
  }
}
