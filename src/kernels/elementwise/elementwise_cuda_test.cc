#include "kernels/elementwise/elementwise_cuda.h"

#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

class ElementwiseCuda : public GpuTest {};

TEST_F(ElementwiseCuda, EmbedsRowsIntoEachStreamAndZerosWherePadding) {
  for (const int64_t columns : {8, 256, 4096}) {
    constexpr int64_t kVocab = 40, kCopies = 4;
    std::vector<Bf16> table;
    for (const float x : RandomNormal(kVocab * columns, 1)) table.push_back(ToBf16(x));
    const std::vector<int32_t> ids{3, 39, 0, 0, 17, 3}, positions{9, 0, -1, 4, 5, -1};
    const DeviceArray<Bf16> device_table(table);
    const DeviceArray<int32_t> device_ids(ids), device_positions(positions);
    DeviceArray<Bf16> out(ids.size() * static_cast<size_t>(kCopies * columns));
    ASSERT_TRUE(Finish(LaunchEmbed({.table = device_table.data(),
                                    .vocab = kVocab,
                                    .columns = columns,
                                    .copies = kCopies,
                                    .tokens = {.count = std::ssize(ids),
                                               .positions = device_positions.data(),
                                               .token_ids = device_ids.data()},
                                    .out = out.data()},
                                   stream.get())));
    std::vector<Bf16> want;
    for (size_t t = 0; t < ids.size(); ++t) {
      for (int64_t i = 0; i < kCopies * columns; ++i) {
        want.push_back(
            positions[t] < 0 ? Bf16{} : table[static_cast<size_t>(ids[t] * columns + i % columns)]);
      }
    }
    EXPECT_EQ(out.Read(), want) << columns;
  }
}

TEST_F(ElementwiseCuda, KeepsRowsOfAnyNumberOfWords) {
  for (const int64_t words : {1, 4, 16, 1000}) {
    std::vector<int32_t> from(static_cast<size_t>(20 * words));
    std::iota(from.begin(), from.end(), 0);
    const std::vector<int32_t> rows{0, 3, 4, 19};
    const DeviceArray<int32_t> device_from(from), device_rows(rows);
    DeviceArray<int32_t> to(rows.size() * static_cast<size_t>(words));
    ASSERT_TRUE(Finish(LaunchKeepRows({.from = device_from.data(),
                                       .rows = device_rows.data(),
                                       .count = std::ssize(rows),
                                       .row_bytes = 4 * words,
                                       .to = to.data()},
                                      stream.get())));
    std::vector<int32_t> want;
    for (const int32_t row : rows) {
      want.insert(want.end(), from.begin() + row * words, from.begin() + (row + 1) * words);
    }
    EXPECT_EQ(to.Read(), want) << words;
  }
}

TEST_F(ElementwiseCuda, AddsAsTheCpuDoes) {
  for (const int64_t count : {4, 1024, 4 * 2501}) {
    std::vector<float> a = RandomNormal(count, 1), b = RandomNormal(count, 2);
    const DeviceArray<float> device_a(a), device_b(b);
    DeviceArray<Bf16> out(static_cast<size_t>(count));
    ASSERT_TRUE(
        Finish(LaunchAddRows({device_a.data(), device_b.data(), count, out.data()}, stream.get())));
    ThreadPool pool(1);
    AddRows(Context(pool), {b.data(), 1, count}, Rounding::kBf16, {a.data(), 1, count});
    std::vector<Bf16> want;
    for (const float x : a) want.push_back(ToBf16(x));
    EXPECT_EQ(out.Read(), want) << count;
  }
}

}  // namespace
}  // namespace halfbyte
