// What a step looks up, in memory of the host: needs no GPU.
#include "model/cuda/cuda_step_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "model/cuda/decode_bucket.h"

namespace halfbyte {
namespace {

using Ids = std::vector<int32_t>;

Ids Read(const int32_t* table, int64_t count) { return {table, table + count}; }

// Tables of a batch over memory that held something else.
struct Tables {
  Tables(const StepSizes& sizes, std::span<const PlacedItem> batch)
      : memory(static_cast<size_t>(CudaStepTables(sizes, nullptr).bytes() + 16), std::byte{0x5a}),
        tables(sizes, memory.data()) {
    tables.Fill(batch);
    for (size_t i = memory.size() - 16; i < memory.size(); ++i) {
      EXPECT_EQ(memory[i], std::byte{0x5a}) << "beyond the tables";
    }
  }
  std::vector<std::byte> memory;
  CudaStepTables tables;
};

// A prompt's chunk in a replay, and a sequence that generates.
struct Batch {
  SequencePages prompt{.position = 70,
                       .slot = 4,
                       .context_blocks = {7, 8, 9},
                       .window_pages = {-1, 3, 5},
                       .replay_start = 64,
                       .replay_end = 72};
  SequencePages generating{
      .position = 300, .slot = 1, .context_blocks = {2, 6}, .window_pages = {-1, -1, -1, 1, 0}};
  Ids chunk{11, 12, 13}, token{14};
  std::vector<PlacedItem> items(LogitsWanted prompt_wants) const {
    return {{&prompt, chunk, prompt_wants}, {&generating, token, LogitsWanted::kLast}};
  }
};

TEST(CudaStepTables, SayWhereTokensAndSequencesAre) {
  const Batch batch;
  const auto items = batch.items(LogitsWanted::kLast);
  const StepSizes sizes = StepSizes::Of(items);
  EXPECT_EQ(sizes.shape.tokens, (std::array<int64_t, 2>{4, 2}));
  EXPECT_EQ(sizes.shape.context, (std::array<int64_t, 2>{301, 301}));
  EXPECT_EQ(sizes.sequences, 2);
  const Tables made(sizes, items);
  const DeviceTokens all = made.tables.of(TokenSet::kAll);
  EXPECT_EQ(Read(all.positions, all.count), (Ids{70, 71, 72, 300}));
  EXPECT_EQ(Read(all.sequences, all.count), (Ids{0, 0, 0, 1}));
  EXPECT_EQ(Read(all.token_ids, all.count), (Ids{11, 12, 13, 14}));
  EXPECT_EQ(all.source_rows, nullptr);
  const DeviceTokens wanted = made.tables.of(TokenSet::kWanted);
  EXPECT_EQ(Read(wanted.positions, wanted.count), (Ids{72, 300}));
  EXPECT_EQ(Read(wanted.sequences, wanted.count), (Ids{0, 1}));
  EXPECT_EQ(Read(wanted.token_ids, wanted.count), (Ids{13, 14}));
  EXPECT_EQ(Read(wanted.source_rows, wanted.count), (Ids{2, 3}));
  const DeviceSequences& sequences = made.tables.sequences();
  EXPECT_EQ(sequences.count, 2);
  EXPECT_EQ(Read(sequences.first_rows, 2), (Ids{0, 3}));
  EXPECT_EQ(Read(sequences.tokens, 2), (Ids{3, 1}));
  EXPECT_EQ(Read(sequences.first_positions, 2), (Ids{70, 300}));
  EXPECT_EQ(Read(sequences.slots, 2), (Ids{4, 1}));
  EXPECT_EQ(Read(sequences.replay_starts, 2), (Ids{64, 0}));
  EXPECT_EQ(Read(sequences.replay_ends, 2), (Ids{72, 0}));
  // As many pages as the longest has; what was reserved ahead is left out.
  EXPECT_EQ(sequences.context_stride, 2);
  EXPECT_EQ(Read(sequences.context_blocks, 4), (Ids{7, 8, 2, 6}));
  EXPECT_EQ(sequences.window_stride, 5);
  EXPECT_EQ(Read(sequences.window_pages, 10), (Ids{-1, 3, 5, 0, 0, -1, -1, -1, 1, 0}));
}

TEST(CudaStepTables, AreTheSameOfAllAndOfWantedTokensIfAllAreWanted) {
  const Batch batch;
  const auto items = batch.items(LogitsWanted::kAll);
  const Tables made(StepSizes::Of(items), items);
  EXPECT_EQ(made.tables.of(TokenSet::kWanted).positions, made.tables.of(TokenSet::kAll).positions);
  EXPECT_EQ(made.tables.of(TokenSet::kWanted).source_rows, nullptr);
}

TEST(CudaStepTables, PaddingIsNobodysAndLiesInTheSamePlaces) {
  const Batch batch;
  const PlacedItem items[] = {{&batch.generating, batch.token, LogitsWanted::kLast}};
  const StepSizes sizes{{.tokens = {4, 4}, .context = {1023, 1023}}, 4};
  const Tables made(sizes, items), empty(sizes, {});
  const DeviceTokens all = made.tables.of(TokenSet::kAll);
  EXPECT_EQ(Read(all.positions, 4), (Ids{300, -1, -1, -1}));
  EXPECT_EQ(Read(all.sequences, 4), (Ids{0, 0, 0, 0}));
  EXPECT_EQ(Read(all.token_ids, 4), (Ids{14, 0, 0, 0}));
  const DeviceSequences& sequences = made.tables.sequences();
  EXPECT_EQ(sequences.context_stride, 4);
  EXPECT_EQ(sequences.window_stride, 16);
  EXPECT_EQ(Read(sequences.tokens, 4), (Ids{1, 0, 0, 0}));
  EXPECT_EQ(Read(sequences.slots, 4), (Ids{1, 0, 0, 0}));
  EXPECT_EQ(Read(sequences.context_blocks, 16),
            (Ids{2, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(Read(empty.tables.of(TokenSet::kAll).positions, 4), (Ids{-1, -1, -1, -1}));
  // Places are a function of the sizes.
  const auto offset = [](const Tables& tables, const int32_t* at) {
    return reinterpret_cast<const std::byte*>(at) - tables.memory.data();
  };
  EXPECT_EQ(offset(made, sequences.window_pages),
            offset(empty, empty.tables.sequences().window_pages));
}

ModelConfig FlashLayers() {
  ModelConfig config;
  config.index_topk = 512;
  config.layers = {
      {AttentionKind::kWindow, 0}, {AttentionKind::kC4, 4}, {AttentionKind::kC128, 128}};
  return config;
}

std::optional<StepSizes> Padded(int64_t sequences, int64_t longest, int64_t most_rows = 512,
                                int64_t most_context = 100'000) {
  const StepSizes step{{.tokens = {sequences, sequences}, .context = {longest, longest}},
                       sequences};
  return DecodeSizes(FlashLayers(), step, most_rows, most_context);
}

TEST(DecodeSizes, PadToTheNextBucketAndToAContextWithoutSelectionFirst) {
  EXPECT_EQ(Padded(1, 5)->shape.tokens[0], 1);
  EXPECT_EQ(Padded(3, 5)->sequences, 4);
  EXPECT_EQ(Padded(25, 5)->shape.tokens[1], 32);
  EXPECT_EQ(Padded(128, 5)->shape.tokens[0], 128);
  EXPECT_EQ(Padded(129, 5), std::nullopt);
  EXPECT_EQ(Padded(97, 5, /*most_rows=*/100), std::nullopt);
  // Up to 512 entries are visible at 2,051 positions, and then all are chosen.
  EXPECT_EQ(Padded(1, 2051)->shape.context[0], 2051);
  EXPECT_EQ(Padded(1, 2052)->shape.context[1], 4 * 2051);
  EXPECT_EQ(Padded(1, 99'000)->shape.context[0], 100'000);
}

TEST(DecodeSizes, AreForOneWantedTokenOfEachSequence) {
  const ModelConfig config = FlashLayers();
  const StepSizes chunk{{.tokens = {5, 5}, .context = {5, 5}}, 2};
  EXPECT_EQ(DecodeSizes(config, chunk, 512, 4096), std::nullopt);
  const StepSizes unwanted{{.tokens = {2, 1}, .context = {5, 5}}, 2};
  EXPECT_EQ(DecodeSizes(config, unwanted, 512, 4096), std::nullopt);
}

}  // namespace
}  // namespace halfbyte
