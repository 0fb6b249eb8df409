#include "checkpoint/inventory.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/checkpoint_test_files.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

struct Totals {
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// What a module takes in DeepSeek's own formats (checkpoints.md §1.2): MXFP4 experts, FP8
// projections, BF16 norms and plain matrices, F32 parameters, I64 tables.
Totals OfficialTotals(const ModelConfig& config, const ModuleKey& key) {
  const Shape shape = *ExpectedShape(config, key);
  const int64_t count = ElementCount(shape);
  if (IsRoutedExpert(key.module)) return {2, count / 2 + count / 32};
  switch (key.module) {
    case Module::kQA:
    case Module::kQB:
    case Module::kKv:
    case Module::kOA:
    case Module::kOB:
    case Module::kIndexerQB:
    case Module::kSharedGate:
    case Module::kSharedUp:
    case Module::kSharedDown:
    case Module::kMtpEmbedProj:
    case Module::kMtpHiddenProj:
      return {2, count + CeilDiv(shape[0], 128) * CeilDiv(shape[1], 128)};
    case Module::kRouterTable:
      return {1, count * 8};
    case Module::kAttentionSink:
    case Module::kRouterBias:
    case Module::kCompressorApe:
    case Module::kIndexerApe:
    case Module::kHcHeadFn:
    case Module::kHcHeadBase:
    case Module::kHcHeadScale:
    case Module::kHcAttentionFn:
    case Module::kHcAttentionBase:
    case Module::kHcAttentionScale:
    case Module::kHcFfnFn:
    case Module::kHcFfnBase:
    case Module::kHcFfnScale:
      return {1, count * 4};
    default:
      return {1, count * 2};
  }
}

Totals TotalsOf(const std::string& name) {
  const std::filesystem::path path =
      std::filesystem::path(HALFBYTE_SOURCE_DIR) / "tests/data/checkpoint" / name;
  const ModelConfig config = *ParseModelConfig(*ReadJsonFile(path), name);
  std::vector<ModuleKey> keys = RequiredModules(config);
  for (const ModuleKey& key : RequiredMtpModules(config, 0)) keys.push_back(key);
  Totals sum;
  for (const ModuleKey& key : keys) {
    const Totals totals = OfficialTotals(config, key);
    sum.tensors += totals.tensors;
    sum.bytes += totals.bytes;
  }
  return sum;
}

TEST(Inventory, GivesThePublishedTotalsOfFlashAndPro) {
  const Totals flash = TotalsOf("official-flash-config.json");
  EXPECT_EQ(flash.tensors, 69187);
  EXPECT_EQ(flash.bytes, 159609485896);
  const Totals pro = TotalsOf("official-pro-config.json");
  EXPECT_EQ(pro.tensors, 145116);
  EXPECT_EQ(pro.bytes, 864704792696);
}

TEST(Inventory, HasNoModulesOutsideTheModel) {
  const ModelConfig config = *ParseModelConfig(test::TinyConfig(), "tiny");
  EXPECT_FALSE(ExpectedShape(config, ModuleKey::Layer(3, Module::kQA)));
  EXPECT_FALSE(ExpectedShape(config, ModuleKey::Layer(0, Module::kExpertUp, 4)));
  EXPECT_FALSE(ExpectedShape(config, ModuleKey::Layer(0, Module::kCompressorKv)));
  EXPECT_FALSE(ExpectedShape(config, ModuleKey::Layer(2, Module::kIndexerQB)));
  EXPECT_FALSE(ExpectedShape(config, ModuleKey::Layer(0, Module::kRouterBias)));
  EXPECT_FALSE(ExpectedShape(config, ModuleKey::Layer(1, Module::kRouterTable)));
  EXPECT_EQ(*ExpectedShape(config, ModuleKey::Layer(1, Module::kCompressorKv)), (Shape{64, 64}));
  EXPECT_EQ(*ExpectedShape(config, ModuleKey::Layer(2, Module::kCompressorKv)), (Shape{32, 64}));
}

}  // namespace
}  // namespace halfbyte
