#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/checkpoint_test_files.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

ModelConfig ReadData(const std::string& name) {
  const fs::path path = fs::path(HALFBYTE_SOURCE_DIR) / "tests/data/checkpoint" / name;
  const auto config = ParseModelConfig(*ReadJsonFile(path), name);
  EXPECT_TRUE(config) << config.error().message;
  return *config;
}

TEST(ModelConfig, ReadsDeepSeeksSpelling) {
  const ModelConfig flash = ReadData("official-flash-config.json");
  EXPECT_EQ(flash.layer_count(), 43);
  EXPECT_EQ(flash.mtp_stages, 1);
  EXPECT_EQ(flash.layers[1].attention, AttentionKind::kWindow);
  EXPECT_EQ(flash.layers[2].attention, AttentionKind::kC4);
  EXPECT_EQ(flash.layers[3].attention, AttentionKind::kC128);
  EXPECT_EQ(flash.layers[3].compress_rate, 128);
  EXPECT_TRUE(flash.layers[2].hash_routed);
  EXPECT_FALSE(flash.layers[3].hash_routed);
  EXPECT_EQ(flash.window_rope.theta, 10000);
  EXPECT_FALSE(flash.window_rope.yarn);
  EXPECT_EQ(flash.compressed_rope.theta, 160000);
  ASSERT_TRUE(flash.compressed_rope.yarn);
  EXPECT_EQ(flash.compressed_rope.yarn->original_max_position, 65536);
  EXPECT_EQ(flash.swiglu_limit, 10);
  EXPECT_EQ(flash.rope_dim, 64);
  EXPECT_EQ(flash.group_heads(), 8);
  EXPECT_EQ(flash.eos_token_ids, std::vector<int64_t>{1});
  EXPECT_TRUE(flash.quantization);
  EXPECT_EQ(ReadData("official-pro-config.json").layers[1].attention, AttentionKind::kC128);
}

TEST(ModelConfig, ReadsTheSpellingOfTransformers) {
  const ModelConfig mixed = ReadData("golden-mixed-config.json");
  EXPECT_EQ(mixed.layer_count(), 6);
  EXPECT_EQ(mixed.layers[2].attention, AttentionKind::kC128);
  EXPECT_EQ(mixed.layers[2].compress_rate, 16);
  EXPECT_EQ(mixed.layers[3].compress_rate, 4);
  EXPECT_TRUE(mixed.layers[1].hash_routed);
  EXPECT_FALSE(mixed.layers[2].hash_routed);
  ASSERT_TRUE(mixed.compressed_rope.yarn);
  EXPECT_EQ(mixed.compressed_rope.yarn->factor, 16);
  EXPECT_EQ(mixed.rope_dim, 8);
  EXPECT_FALSE(ReadData("golden-odd_shapes-config.json").compressed_rope.yarn);
  EXPECT_EQ(ReadData("golden-real_rates-config.json").layers[3].compress_rate, 128);
  EXPECT_EQ(ReadData("tiny-v4-config.json").mtp_stages, 0);
}

TEST(ModelConfig, ReadsNestedRopeAndPartialFactorAlone) {
  Json json = test::TinyConfig();
  json.erase("rope_theta");
  json.erase("compress_rope_theta");
  json.erase("rope_scaling");
  json.erase("qk_rope_head_dim");
  json["rope_parameters"] = Json::parse(R"({
      "main": {"rope_theta": 500, "rope_type": "default", "partial_rotary_factor": 0.25},
      "compress": {"rope_theta": 700, "rope_type": "yarn", "factor": 2,
                   "original_max_position_embeddings": 32}})");
  const auto config = ParseModelConfig(json, "c");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->rope_dim, 8);
  EXPECT_EQ(config->window_rope.theta, 500);
  EXPECT_EQ(config->compressed_rope.theta, 700);
  EXPECT_EQ(config->compressed_rope.yarn->beta_fast, 32);
}

TEST(ModelConfig, ReadsDsparkStages) {
  Json json = test::TinyConfig();
  json["compress_ratios"] = {0, 4, 16, 0, 0, 0};
  json["dspark_block_size"] = 5;
  json["dspark_markov_rank"] = 256;
  json["dspark_target_layer_ids"] = {0, 1, 2};
  const auto config = ParseModelConfig(json, "c");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->mtp_stages, 3);
  EXPECT_TRUE(config->is_dspark());
  EXPECT_EQ(*ExpectedShape(*config, ModuleKey::Mtp(0, Module::kMtpMainProj)), (Shape{64, 192}));
}

TEST(ModelConfig, JoinsEosIdsOfBothFiles) {
  const test::TempDir dir;
  Json json = test::TinyConfig();
  json["eos_token_id"] = {1, 2};
  test::WriteBytes(dir.path() / "config.json", json.dump());
  test::WriteBytes(dir.path() / "generation_config.json", R"({"eos_token_id":[2,3]})");
  EXPECT_EQ(ReadModelConfig(dir.path())->eos_token_ids, (std::vector<int64_t>{1, 2, 3}));
  test::WriteBytes(dir.path() / "generation_config.json", R"({"eos_token_id":48})");
  EXPECT_FALSE(ReadModelConfig(dir.path()));
}

struct BadConfig {
  const char* name;
  const char* patch;  // JSON merge patch on the tiny config
  const char* words;  // must appear in the error
};

class ModelConfigRefuses : public testing::TestWithParam<BadConfig> {};

TEST_P(ModelConfigRefuses, NamingTheField) {
  Json json = test::TinyConfig();
  json.merge_patch(Json::parse(GetParam().patch));
  const auto config = ParseModelConfig(json, "config.json");
  ASSERT_FALSE(config) << "was accepted";
  EXPECT_EQ(config.error().message.find("config.json: "), 0u);
  EXPECT_NE(config.error().message.find(GetParam().words), std::string::npos)
      << config.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Contradictions, ModelConfigRefuses,
    testing::Values(
        BadConfig{"V41", R"({"model_type":"deepseek_v41"})", "deepseek_v41"},
        BadConfig{"OtherModel", R"({"model_type":"llama"})", "llama"},
        BadConfig{"NoModelType", R"({"model_type":null})", "model_type"},
        BadConfig{"NoHidden", R"({"hidden_size":null})", "hidden_size is missing"},
        BadConfig{"ZeroHidden", R"({"hidden_size":0})", "hidden_size"},
        BadConfig{"NegativeLayers", R"({"num_hidden_layers":-3})", "num_hidden_layers"},
        BadConfig{"AbsurdVocab", R"({"vocab_size":1000000000000})", "vocab_size"},
        BadConfig{"TextSize", R"({"hidden_size":"64"})", "hidden_size must be an integer"},
        BadConfig{"FractionalSize", R"({"hidden_size":64.5})", "hidden_size"},
        BadConfig{"FewRatios", R"({"compress_ratios":[0,4]})", "compress_ratios has 2 entries"},
        BadConfig{"DraftRatio", R"({"compress_ratios":[0,4,16,4]})", "draft stages"},
        BadConfig{"OddRatio", R"({"compress_ratios":[0,3,16,0]})", "compression rate"},
        BadConfig{"NoRatios", R"({"compress_ratios":null})", "compress_ratios is missing"},
        BadConfig{
            "KindsDiffer",
            R"({"layer_types":["sliding_attention","sliding_attention","sliding_attention"]})",
            "layer_types entry 1"},
        BadConfig{"UnknownKind", R"({"layer_types":["a","b","c"]})", "unknown kind a"},
        BadConfig{"FewKinds", R"({"layer_types":["sliding_attention"]})", "layer_types has 1"},
        BadConfig{"NoRates",
                  R"({"compress_ratios":null,"layer_types":["sliding_attention",
                      "heavily_compressed_attention","sliding_attention"]})",
                  "compress_rates is missing"},
        BadConfig{"ManyHash", R"({"num_hash_layers":9})", "num_hash_layers"},
        BadConfig{"HashDiffers", R"({"mlp_layer_types":["moe","moe","moe"]})", "mlp_layer_types"},
        BadConfig{"HeadBelowRope", R"({"head_dim":4})", "more than head_dim 4"},
        BadConfig{"OddRope", R"({"qk_rope_head_dim":7})", "even"},
        BadConfig{"RopeDiffers", R"({"partial_rotary_factor":0.5})", "partial_rotary_factor"},
        BadConfig{"IndexBelowRope", R"({"index_head_dim":4})", "index_head_dim"},
        BadConfig{"Groups", R"({"o_groups":3})", "o_groups is 3"},
        BadConfig{"TopK", R"({"num_experts_per_tok":5})", "num_experts_per_tok is 5"},
        BadConfig{"ThetaDiffers", R"({"rope_parameters":{"main":{"rope_theta":5}}})",
                  "rope_parameters.main.rope_theta"},
        BadConfig{"YarnDiffers", R"({"rope_parameters":{"compress":{"rope_type":"default"}}})",
                  "rope_scaling"},
        BadConfig{"YarnOnWindow",
                  R"({"rope_parameters":{"main":{"rope_type":"yarn","factor":2,
                      "original_max_position_embeddings":9}}})",
                  "window layers have plain RoPE"},
        BadConfig{"OtherScaling", R"({"rope_scaling":{"type":"linear"}})", "linear"},
        BadConfig{"Scoring", R"({"scoring_func":"softmax"})", "softmax"},
        BadConfig{"Bias", R"({"attention_bias":true})", "attention_bias"},
        BadConfig{"KvHeads", R"({"num_key_value_heads":8})", "num_key_value_heads"},
        BadConfig{"Limit", R"({"swiglu_limit":-1})", "swiglu_limit"},
        BadConfig{"Eps", R"({"rms_norm_eps":0})", "rms_norm_eps"},
        BadConfig{"Streams", R"({"hc_mult":1000})", "hc_mult"},
        BadConfig{"Eos", R"({"eos_token_id":48})", "eos_token_id is 48"},
        BadConfig{"EosText", R"({"eos_token_id":"x"})", "eos_token_id"}),
    [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace halfbyte
