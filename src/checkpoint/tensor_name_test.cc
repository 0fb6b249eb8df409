#include "checkpoint/tensor_name.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_test_files.h"

namespace halfbyte {
namespace {

void ExpectMeaning(const char* name, const ModuleKey& key, Part part, NamingStyle style) {
  const auto parsed = ParseTensorName(name);
  ASSERT_TRUE(parsed) << name;
  EXPECT_EQ(*parsed, (TensorName{key, part, style})) << name << " is " << Describe(parsed->key);
}

TEST(TensorName, ReadsEveryStyle) {
  const ModuleKey w3 = ModuleKey::Layer(10, Module::kExpertUp, 255);
  ExpectMeaning("layers.10.ffn.experts.255.w3.scale", w3, Part::kScale, NamingStyle::kOfficial);
  ExpectMeaning("model.layers.10.mlp.experts.255.up_proj.weight_scale_2", w3, Part::kWeightScale2,
                NamingStyle::kHuggingFace);
  ExpectMeaning("language_model.model.layers.10.mlp.experts.255.up_proj.weight_packed", w3,
                Part::kWeightPacked, NamingStyle::kLanguageModelOuter);
  ExpectMeaning("model.language_model.layers.10.mlp.experts.255.up_proj.input_global_scale", w3,
                Part::kInputGlobalScale, NamingStyle::kLanguageModelInner);
  ExpectMeaning("model.layers.10.ffn.experts.255.w3.scale", w3, Part::kScale,
                NamingStyle::kOfficialBelowModel);
  ExpectMeaning("layers.10.mlp.experts.255.up_proj.weight", w3, Part::kWeight,
                NamingStyle::kHuggingFaceBare);
  ExpectMeaning("language_model.model.layers.10.ffn.experts.255.w3.weight", w3, Part::kWeight,
                NamingStyle::kOfficialLanguageModelOuter);
  ExpectMeaning("model.language_model.layers.10.ffn.experts.255.w3.weight", w3, Part::kWeight,
                NamingStyle::kOfficialLanguageModelInner);
}

TEST(TensorName, ReadsBareFusedGlobalAndDraftNames) {
  ExpectMeaning("layers.0.hc_attn_scale", ModuleKey::Layer(0, Module::kHcAttentionScale),
                Part::kWeight, NamingStyle::kOfficial);
  ExpectMeaning("layers.3.ffn.gate.bias", ModuleKey::Layer(3, Module::kRouterBias), Part::kWeight,
                NamingStyle::kOfficial);
  ExpectMeaning("model.layers.0.mlp.experts.gate_up_proj",
                ModuleKey::Layer(0, Module::kExpertGateUp), Part::kWeight,
                NamingStyle::kHuggingFace);
  ExpectMeaning("model.layers.0.mlp.experts.down_proj", ModuleKey::Layer(0, Module::kExpertDown),
                Part::kWeight, NamingStyle::kHuggingFace);
  ExpectMeaning("embed.weight", ModuleKey::Global(Module::kEmbed), Part::kWeight,
                NamingStyle::kOfficial);
  ExpectMeaning("lm_head.weight", ModuleKey::Global(Module::kHead), Part::kWeight,
                NamingStyle::kHuggingFace);
  ExpectMeaning("model.hc_head.hc_fn", ModuleKey::Global(Module::kHcHeadFn), Part::kWeight,
                NamingStyle::kHuggingFace);
  ExpectMeaning("mtp.0.e_proj.scale", ModuleKey::Mtp(0, Module::kMtpEmbedProj), Part::kScale,
                NamingStyle::kOfficial);
  ExpectMeaning("mtp.2.markov_head.markov_w1.weight", ModuleKey::Mtp(2, Module::kMtpMarkov1),
                Part::kWeight, NamingStyle::kOfficial);
}

struct SavedName {
  const char* name;
  ModuleKey key;
};

void ExpectKeys(std::initializer_list<SavedName> names) {
  for (const auto& [name, key] : names) {
    const auto parsed = ParseTensorName(name);
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(parsed->key, key) << name << " is " << Describe(parsed->key);
    EXPECT_EQ(parsed->part, Part::kWeight) << name;
  }
}

TEST(TensorName, ReadsWhatTransformersSavesOfAModelWithOfficialNames) {  // 5.16.1 to 5.24.0
  const auto layer = [](Module module) { return ModuleKey::Layer(2, module); };
  ExpectKeys(
      {{"head.weight", ModuleKey::Global(Module::kHead)},
       {"model.embed_tokens.weight", ModuleKey::Global(Module::kEmbed)},
       {"model.norm.weight", ModuleKey::Global(Module::kNorm)},
       {"model.hc_head.hc_fn", ModuleKey::Global(Module::kHcHeadFn)},
       {"model.layers.2.attn.norm.weight", layer(Module::kKvNorm)},
       {"model.layers.2.attn.attn_sink", layer(Module::kAttentionSink)},
       {"model.layers.2.attn.compressor.norm.weight", layer(Module::kCompressorNorm)},
       {"model.layers.2.attn.indexer.compressor.ape", layer(Module::kIndexerApe)},
       {"model.layers.2.attn.indexer.weights_proj.weight", layer(Module::kIndexerWeights)},
       {"model.layers.2.hc_ffn_scale", layer(Module::kHcFfnScale)},
       {"model.layers.2.ffn.gate.bias", layer(Module::kRouterBias)},
       {"model.layers.2.ffn.experts.7.w2.weight", ModuleKey::Layer(2, Module::kExpertDown, 7)}});
}

TEST(TensorName, ReadsWhatTransformersSavesOfAModelWithItsOwnNames) {  // 5.16.1 to 5.24.0
  const auto layer = [](Module module) { return ModuleKey::Layer(2, module); };
  ExpectKeys(
      {{"model.layers.2.self_attn.norm.weight", layer(Module::kKvNorm)},
       {"model.layers.2.self_attn.compressor.norm.weight", layer(Module::kCompressorNorm)},
       {"model.layers.2.self_attn.compressor.indexer.norm.weight", layer(Module::kIndexerNorm)},
       {"model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight",
        layer(Module::kIndexerWeights)}});
}

TEST(TensorName, ReadsTheMixturesOfOlderTransformers) {  // 5.8.1 and 5.12.1
  const auto layer = [](Module module) { return ModuleKey::Layer(2, module); };
  ExpectKeys(
      {{"model.layers.2.mlp.experts.7.w1.weight", ModuleKey::Layer(2, Module::kExpertGate, 7)},
       {"model.layers.2.mlp.experts..7.w3.weight", ModuleKey::Layer(2, Module::kExpertUp, 7)},
       {"model.layers.2.self_attn.compressor.indexer.weights_proj.weight",
        layer(Module::kIndexerWeights)},
       {"layers.2.attn.compressor.gate_proj.weight", layer(Module::kCompressorGate)},
       {"layers.2.attn.indexer.position_bias", layer(Module::kIndexerApe)},
       {"layers.2.attn.indexer.kv_norm.weight", layer(Module::kIndexerNorm)},
       {"layers.2.ffn.experts.gate_up_proj", layer(Module::kExpertGateUp)},
       {"layers.2.ffn.experts.down_proj", layer(Module::kExpertDown)}});
}

TEST(TensorName, KnowsNothingElse) {
  for (const char* name : {"",
                           "weight",
                           "layers.0",
                           "layers.0.",
                           "layers..attn.wq_a.weight",
                           "layers.-1.attn.wq_a.weight",
                           "layers.01.attn.wq_a.weight",
                           "layers.0.attn.wq_a",
                           "layers.0.attn.wq_a.weight2",
                           "layers.0.attn.wq_c.weight",
                           "layers.99999999999.attn.wq_a.weight",
                           "layers.0.ffn.experts.w1.weight",
                           "layers.0.ffn.experts.*.w1.weight",
                           "layers.0.ffn.experts.1.w4.weight",
                           "layers.0.hc_attn_fn.weight",
                           "layers.0.enorm.weight",
                           "model.layers.0.attn.q_a_proj.weight",
                           "layers.0.self_attn.wq_a.weight",
                           "layers.0.ffn.experts...1.w1.weight",
                           "mtp.0.attn.norm.weight",
                           "model.layers.0.self_attn.k_scale",
                           "mtp.0.attn.compressor.wkv.weight",
                           "model.lm_head.weight",
                           "layers.0.embed.weight",
                           "mtp.0.embed.weight"}) {
    EXPECT_FALSE(ParseTensorName(name)) << name;
  }
}

TEST(TensorName, FormatsWhatItReadsForEveryModuleOfAModel) {
  const ModelConfig config = *ParseModelConfig(test::TinyConfig(), "tiny");
  std::vector<ModuleKey> keys = RequiredModules(config);
  for (const ModuleKey& key : RequiredMtpModules(config, 0)) keys.push_back(key);
  for (int s = 0; s < kNamingStyles; ++s) {
    const auto style = static_cast<NamingStyle>(s);
    for (const ModuleKey& key : keys) {
      for (int i = 0; i < kParts; ++i) {
        const auto part = static_cast<Part>(i);
        const auto name = FormatTensorName(key, part, style);
        EXPECT_TRUE(name || part != Part::kWeight) << Describe(key);
        if (!name) continue;
        if (key.module == Module::kRouter && part == Part::kBias) continue;  // the selection bias
        const auto parsed = ParseTensorName(*name);
        ASSERT_TRUE(parsed) << *name;
        EXPECT_EQ(parsed->key, key) << *name;
        EXPECT_EQ(parsed->part, part) << *name;
      }
    }
  }
}

TEST(TensorName, HasNoFusedExpertsInOfficialNames) {
  const ModuleKey fused = ModuleKey::Layer(0, Module::kExpertGateUp);
  EXPECT_FALSE(FormatTensorName(fused, Part::kWeight, NamingStyle::kOfficial));
  EXPECT_EQ(FormatTensorName(fused, Part::kWeight, NamingStyle::kHuggingFace),
            "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(FormatTensorName(ModuleKey::Layer(1, Module::kExpertDown, 2), Part::kWeightScale,
                             NamingStyle::kHuggingFace),
            "model.layers.1.mlp.experts.2.down_proj.weight_scale");
}

}  // namespace
}  // namespace halfbyte
