// DeepSeek-V4's structure as text, without weights.
#include "model/program/recorded_program.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "model/program/deepseek_v4.h"

namespace halfbyte {
namespace {

// A layer of each kind; sizes that tell their owners.
ModelConfig ThreeLayers() {
  ModelConfig c;
  c.vocab_size = 1000;
  c.hidden_size = 64;
  c.layers = {
      {AttentionKind::kWindow, 0, true}, {AttentionKind::kC4, 4}, {AttentionKind::kC128, 128}};
  c.attention_heads = 4;
  c.head_dim = 20;
  c.q_lora_rank = 32;
  c.o_lora_rank = 24;
  c.o_groups = 2;
  c.index_heads = 3;
  c.index_head_dim = 8;
  c.index_topk = 16;
  c.routed_experts = 10;
  c.experts_per_token = 6;
  c.hc_streams = 4;
  return c;
}

// The operations, a line each.
std::string Record(const StepShape& step, const ProgramOptions& options = {},
                   const ModelConfig& config = ThreeLayers()) {
  RecordedProgram ops(step);
  EXPECT_TRUE(RunDeepseekV4(config, options, step, ops));
  return fmt::format("{}\n", fmt::join(ops.operations(), "\n"));
}

// A chunk of a prompt whose last token gets logits.
constexpr StepShape kChunk{.tokens = {5, 1}, .context = {68, 68}};

TEST(DeepseekV4, IsTheseOperationsInThisOrder) {
  std::ifstream file(std::filesystem::path(HALFBYTE_SOURCE_DIR) /
                     "tests/data/programs/deepseek_v4.txt");
  const std::string expected{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(expected.empty());
  EXPECT_EQ(Record(kChunk), expected);
}

TEST(DeepseekV4, SelectsEntriesOnlyWhereAQuerySeesMoreThanItMayChoose) {
  EXPECT_EQ(Record({.tokens = {5, 1}, .context = {67, 67}}).find("select"), std::string::npos);
  EXPECT_NE(Record(kChunk).find("\nselect"), std::string::npos);
  // Whose queries do not go on needs no selection in the last layer.
  ModelConfig c4_last = ThreeLayers();
  std::swap(c4_last.layers[1], c4_last.layers[2]);
  const std::string text = Record({.tokens = {5, 1}, .context = {68, 40}}, {}, c4_last);
  EXPECT_EQ(text.find("select"), std::string::npos);
}

TEST(DeepseekV4, EndsAtTheCacheOfTheLastLayerIfNoLogitsAreWanted) {
  const std::string text = Record({.tokens = {5, 0}, .context = {68, 0}});
  EXPECT_TRUE(text.substr(text.rfind("\n", text.size() - 2) + 1).starts_with("store layer 2"));
}

TEST(DeepseekV4, TakesAllTokensThroughTheLastLayerForWhoeverLooks) {
  const std::string text = Record(kChunk, {.whole_last_layer = true});
  EXPECT_NE(text.find("boundary from moe 2 moe-out[all,64]"), std::string::npos);
  EXPECT_NE(text.find("\nkeep wanted of streams[all,256]\nmerge streams[wanted,256]"),
            std::string::npos);
}

TEST(DeepseekV4, RoundsNothingInFp32) {
  EXPECT_EQ(Record(kChunk, {.rounding = Rounding::kNone}).find("bf16"), std::string::npos);
}

TEST(RecordedProgram, CountsRowsThatAreLiveTogether) {
  RecordedProgram program({.tokens = {5, 1}}, [](RowsName name) -> int64_t {
    return name == RowsName::kQueries ? 2 : 4;
  });
  {
    const RowsScope all(program);
    program.Take(RowsName::kStreams, TokenSet::kAll, 10);
    for (int i = 0; i < 2; ++i) {
      const RowsScope layer(program);
      program.Take(RowsName::kQueries, TokenSet::kWanted, 7);
    }
  }
  program.Take(RowsName::kInput, TokenSet::kAll, 1);
  EXPECT_EQ(program.most_live_bytes(), 4 * 5 * 10 + 2 * 7);
}

}  // namespace
}  // namespace halfbyte
