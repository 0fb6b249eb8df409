#include "model/cuda/cuda_kv_memory.h"

#include <algorithm>
#include <random>
#include <vector>

#include "device/cuda/gpu_test.h"

namespace halfbyte {
namespace {

ModelConfig FourLayers() {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_dim = 32;
  config.index_head_dim = 64;
  config.sliding_window = 128;
  config.layers = {{AttentionKind::kWindow, 0},
                   {AttentionKind::kC4, 4},
                   {AttentionKind::kC128, 128},
                   {AttentionKind::kC4, 4}};
  return config;
}

constexpr KvPoolSizes kSizes{.context_blocks = 5, .window_pages = 7, .state_slots = 3, .tails = 2};

class CudaKvMemoryTest : public GpuTest {
 protected:
  std::unique_ptr<CudaKvMemory> Make(const ModelConfig& config = FourLayers()) {
    auto made =
        CudaKvMemory::Create(*KvLayout::Create(config, MathMode::kDefault), kSizes, stream.get());
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return *std::move(made);
  }
  std::vector<std::byte> Read(const void* from, int64_t bytes) {
    EXPECT_TRUE(Finish(cudaSuccess));
    std::vector<std::byte> read(static_cast<size_t>(bytes));
    EXPECT_EQ(cudaMemcpy(read.data(), from, read.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return read;
  }
  std::vector<std::byte> Write(void* to, int64_t bytes) {
    std::vector<std::byte> written(static_cast<size_t>(bytes));
    for (std::byte& byte : written) byte = static_cast<std::byte>(random_());
    EXPECT_EQ(cudaMemcpy(to, written.data(), written.size(), cudaMemcpyHostToDevice), cudaSuccess);
    return written;
  }
  std::mt19937 random_{1};
};

TEST_F(CudaKvMemoryTest, BeginsWithZerosAndPoolsDoNotOverlap) {
  const auto memory = Make();
  struct Pool {
    std::byte* data;
    int64_t bytes;
    std::vector<std::byte> content;
  };
  std::vector<Pool> pools;
  for (int64_t l = 0; l < 4; ++l) {
    const auto add = [&](const DeviceRows& rows, int64_t pages) {
      if (rows.rows_per_page > 0) pools.push_back({rows.pool, pages * rows.page_bytes(), {}});
    };
    add(memory->window(l), kSizes.window_pages);
    add(memory->entries(l), kSizes.context_blocks);
    add(memory->index(l), kSizes.context_blocks);
  }
  ASSERT_EQ(pools.size(), 4u + 3u + 2u);
  const auto* state = reinterpret_cast<std::byte*>(memory->state());
  pools.push_back({const_cast<std::byte*>(state), 3 * memory->layout().state_slot_bytes(), {}});
  for (Pool& pool : pools) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.data) % 256, 0u);
    const auto read = Read(pool.data, pool.bytes);
    EXPECT_TRUE(std::ranges::all_of(read, [](std::byte b) { return b == std::byte{0}; }));
  }
  for (Pool& pool : pools) pool.content = Write(pool.data, pool.bytes);
  for (const Pool& pool : pools) EXPECT_EQ(Read(pool.data, pool.bytes), pool.content);
}

TEST_F(CudaKvMemoryTest, CopiesOnePageOfEachLayer) {
  const auto memory = Make();
  for (int64_t l = 0; l < 4; ++l) {
    for (const bool window : {true, false}) {
      for (const DeviceRows* rows : {window ? &memory->window(l) : &memory->entries(l),
                                     window ? nullptr : &memory->index(l)}) {
        if (rows == nullptr || rows->rows_per_page == 0) continue;
        const int64_t page = rows->page_bytes(), pages = window ? 7 : 5;
        auto want = Write(rows->pool, pages * page);
        std::copy_n(want.begin() + 1 * page, page, want.begin() + 4 * page);
        const auto pool = window ? KvPool::kWindowPage : KvPool::kContextBlock;
        ASSERT_TRUE(memory->Copy({pool, 1, 4}));
        EXPECT_EQ(Read(rows->pool, pages * page), want) << "layer " << l;
      }
    }
  }
  const int64_t slot = memory->layout().state_slot_bytes();
  auto want = Write(memory->state(), 3 * slot);
  std::copy_n(want.begin() + 2 * slot, slot, want.begin());
  ASSERT_TRUE(memory->Copy({KvPool::kStateSlot, 2, 0}));
  EXPECT_EQ(Read(memory->state(), 3 * slot), want);
}

TEST_F(CudaKvMemoryTest, TailsKeepTheLastGroupOfRingsThatOverlap) {
  const auto memory = Make();
  const KvLayout& layout = memory->layout();
  const int64_t slot = layout.state_slot_bytes();
  for (const int64_t position : {256, 512 + 256}) {
    const auto before = Write(memory->state(), 3 * slot);
    ASSERT_TRUE(memory->SaveTail({0, position, 1}));
    const auto after = Write(memory->state(), 3 * slot);  // the sequence goes on
    ASSERT_TRUE(memory->RestoreTail({2, position, 1}));
    auto want = after;
    for (const KvLayout::Ring& ring : layout.rings()) {
      if (!ring.overlap) continue;
      for (int64_t p = position - ring.rate; p < position; ++p) {
        const int64_t row = 4 * (ring.offset + p % (2 * ring.rate) * ring.row_floats);
        std::copy_n(before.begin() + row, 4 * ring.row_floats, want.begin() + 2 * slot + row);
      }
    }
    EXPECT_EQ(Read(memory->state(), 3 * slot), want) << position;
  }
}

TEST_F(CudaKvMemoryTest, RefusesRowsThatDoNotLieAtMultiplesOf16) {
  ModelConfig config = FourLayers();
  config.head_dim = 132;
  const auto made =
      CudaKvMemory::Create(*KvLayout::Create(config, MathMode::kDefault), kSizes, stream.get());
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("head_dim 132"), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace halfbyte
