#include "kernels/sparse_metadata/sparse_metadata_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/sparse_metadata/sparse_metadata.h"

namespace halfbyte {
namespace {

std::vector<int32_t> RandomBlocks(int64_t requests, int64_t columns, std::mt19937& random) {
  std::vector<int32_t> blocks(static_cast<size_t>(requests * columns));
  for (int32_t& block : blocks) block = static_cast<int32_t>(random() % 100000);
  return blocks;
}

TEST_F(GpuTest, C128aTablesAreThoseOfTheCpu) {  // R125-R127
  std::mt19937 random(1);
  const int64_t requests = 9, columns = 40, rows_per_block = 2;
  const std::vector<int32_t> blocks = RandomBlocks(requests, columns, random);
  for (const int64_t decode : {0, 1, 130, 200}) {
    const int64_t tokens = 200, width = 64, prefill_width = 24;
    std::vector<int64_t> positions, mapping;
    std::vector<int32_t> request;
    for (int64_t t = 0; t < tokens; ++t) {
      positions.push_back(static_cast<int64_t>(random() % 10000));
      request.push_back(static_cast<int32_t>(random() % requests));
      mapping.push_back(random() % 5 == 0 ? -1 : t);
    }
    const auto prefill = static_cast<size_t>(tokens - decode);
    std::vector<int32_t> slots(static_cast<size_t>(decode * width)),
        lengths(static_cast<size_t>(decode)), rows(prefill * prefill_width);
    ThreadPool pool(1);
    BuildC128aTopkMetadata(
        Context(pool),
        {positions, decode, request, mapping, {{blocks.data(), requests, columns}, rows_per_block}},
        {{slots.data(), decode, width}, lengths, {rows.data(), tokens - decode, prefill_width}});
    DeviceArray<int32_t> d_blocks(blocks), d_request(request), d_slots(slots.size()),
        d_lengths(lengths.size()), d_rows(rows.size());
    DeviceArray<int64_t> d_positions(positions), d_mapping(mapping);
    ASSERT_TRUE(Finish(
        LaunchC128aTopkMetadata({.positions = d_positions.data(),
                                 .tokens = tokens,
                                 .decode_tokens = decode,
                                 .request = d_request.data(),
                                 .slot_mapping = d_mapping.data(),
                                 .tables = {d_blocks.data(), requests, columns, rows_per_block},
                                 .decode_slots = d_slots.data(),
                                 .decode_width = width,
                                 .decode_lengths = d_lengths.data(),
                                 .prefill_rows = d_rows.data(),
                                 .prefill_width = prefill_width},
                                stream.get())));
    EXPECT_EQ(d_slots.Read(), slots);
    EXPECT_EQ(d_lengths.Read(), lengths);
    EXPECT_EQ(d_rows.Read(), rows);
  }
}

TEST_F(GpuTest, C4aTablesAreThoseOfTheCpu) {  // R128-R130
  std::mt19937 random(2);
  const int64_t requests = 5, columns = 33, rows_per_block = 64, tokens = 150;
  const std::vector<int32_t> blocks = RandomBlocks(requests, columns, random);
  for (const int64_t top_k : {1, 63, 64, 512, 513}) {
    std::vector<int32_t> entries, request;
    std::vector<uint8_t> valid;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t count = static_cast<int64_t>(random() % static_cast<uint32_t>(top_k + 1));
      for (int64_t j = 0; j < top_k; ++j) {
        entries.push_back(j < count ? static_cast<int32_t>(random() % (columns * rows_per_block))
                                    : -1);
      }
      request.push_back(static_cast<int32_t>(random() % requests));
      valid.push_back(random() % 6 != 0);
    }
    std::vector<int32_t> slots(entries.size()), lengths(static_cast<size_t>(tokens));
    ThreadPool pool(1);
    ComputeC4aGlobalTopk(Context(pool),
                         {{entries.data(), tokens, top_k},
                          request,
                          valid,
                          {{blocks.data(), requests, columns}, rows_per_block}},
                         {slots.data(), tokens, top_k}, lengths);
    DeviceArray<int32_t> d_blocks(blocks), d_request(request), d_entries(entries),
        d_slots(slots.size()), d_lengths(lengths.size());
    DeviceArray<uint8_t> d_valid(valid);
    ASSERT_TRUE(
        Finish(LaunchC4aGlobalTopk({.entries = d_entries.data(),
                                    .tokens = tokens,
                                    .top_k = top_k,
                                    .request = d_request.data(),
                                    .is_valid = d_valid.data(),
                                    .tables = {d_blocks.data(), requests, columns, rows_per_block},
                                    .slots = d_slots.data(),
                                    .lengths = d_lengths.data()},
                                   stream.get())));
    EXPECT_EQ(d_slots.Read(), slots) << top_k;
    EXPECT_EQ(d_lengths.Read(), lengths) << top_k;
  }
}

}  // namespace
}  // namespace halfbyte
