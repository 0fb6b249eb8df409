// What the numbers and names become: every format to every other.
// This file is long because each format, and each thing that only some experts have, is a case.
#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/convert/convert_test_models.h"
#include "checkpoint/verify.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

using namespace test;  // NOLINT: the fixture's namespace
using ::testing::Test;

class ConvertFormats : public Test {
 protected:
  fs::path Source() const { return dir_.path() / "source"; }
  fs::path Target(const std::string& name = "target") const { return dir_.path() / name; }

  std::vector<TestTensor> Write(const TinyFormats& formats) {
    std::vector<TestTensor> tensors = TinyModel(TinyConfig(), formats);
    WriteModel(Source(), TinyConfig(), tensors);
    return tensors;
  }

  // Whatever is no routed expert of the main layers is equal in name, type, shape and bytes; if
  // `restated`, what is quantized is equal in value.
  void ExpectPassedThrough(const fs::path& target, size_t at_least, bool restated = false) {
    const ModelCheckpoint from = OpenModel(Source());
    const ModelCheckpoint to = OpenModel(target);
    size_t same = 0;
    for (const CheckpointTensor& tensor : from.checkpoint().tensors()) {
      const auto name = ParseTensorName(tensor.name());
      if (name && IsRoutedExpert(name->key.module) && name->key.scope == Scope::kLayer) continue;
      if (restated && name && IsMatrix(name->key.module)) {
        EXPECT_TRUE(SameBits(Decode(from, name->key), Decode(to, name->key))) << tensor.name();
        ++same;
        continue;
      }
      const CheckpointTensor* result = to.checkpoint().Find(tensor.name());
      ASSERT_NE(result, nullptr) << tensor.name();
      EXPECT_EQ(result->info->dtype, tensor.info->dtype) << tensor.name();
      EXPECT_EQ(result->info->shape, tensor.info->shape) << tensor.name();
      EXPECT_EQ(BytesOf(result->View()), BytesOf(tensor.View())) << tensor.name();
      ++same;
    }
    EXPECT_GE(same, at_least);
  }

  TempDir dir_;
};

float AmaxOf(const std::vector<float>& values) {
  float amax = 0;
  for (const float x : values) amax = std::max(amax, std::abs(x));
  return amax;
}

// The block rule of numerics/, applied block by block.
std::vector<float> QuantizedReference(const std::vector<float>& values, float amax) {
  const GlobalScale scale = GlobalScale::FromAmax(amax);
  std::vector<float> result(values.size());
  for (size_t i = 0; i < values.size(); i += kNvfp4Block) {
    DequantizeNvfp4Block(QuantizeNvfp4Block(&values[i], scale), scale, &result[i]);
  }
  return result;
}

void ExpectQuantizedFrom(const ModelCheckpoint& from, const ModelCheckpoint& to) {
  for (const ModuleKey& key : ExpertKeys(from.config())) {
    const std::vector<float> values = Decode(from, key);
    float amax = AmaxOf(values);
    ModuleKey partner = key;
    if (key.module == Module::kExpertGate) partner.module = Module::kExpertUp;
    if (key.module == Module::kExpertUp) partner.module = Module::kExpertGate;
    amax = std::max(amax, AmaxOf(Decode(from, partner)));
    const StoredWeight result = *to.FindWeight(key);
    EXPECT_EQ(result.matrix.global_scale, GlobalScale::FromAmax(amax)) << Describe(key);
    const std::vector<float> decoded = Decode(to, key);
    EXPECT_FALSE(AllZero(decoded));
    EXPECT_TRUE(SameBits(decoded, QuantizedReference(values, amax))) << Describe(key);
  }
}

TEST_F(ConvertFormats, Bf16BecomesNvfp4ByTheBlockRuleAndGateAndUpShareTheirGlobalScale) {
  for (const NamingStyle style : {NamingStyle::kOfficial, NamingStyle::kHuggingFace}) {
    auto tensors = TinyModel(TinyConfig(), {style, StoredFormat::kBf16, StoredFormat::kBf16, true});
    Randomize(tensors, "experts");
    WriteModel(Source(), TinyConfig(), tensors);
    const fs::path target = Target(std::string(NamingStyleName(style)));
    const ConversionReport report = MustConvert(Source(), target, To(TargetFormat::kModelOptNvfp4));
    ExpectQuantizedFrom(OpenModel(Source()), OpenModel(target));
    ExpectPassedThrough(target, 60);
    const std::string w3 = style == NamingStyle::kOfficial ? "layers.1.ffn.experts.2.w3"
                                                           : "model.layers.1.mlp.experts.2.up_proj";
    const ModelCheckpoint to = OpenModel(target);
    for (const char* part : {".weight", ".weight_scale", ".weight_scale_2"}) {
      EXPECT_NE(to.checkpoint().Find(w3 + part), nullptr) << w3 << part;
    }
    EXPECT_EQ(to.checkpoint().Find(w3 + ".weight_scale_2")->info->shape, Shape{});
    ASSERT_EQ(report.shards.size(), 1u);
    EXPECT_EQ(report.shards[0].matrices.size(), 36u);
    for (const MatrixReport& matrix : report.shards[0].matrices) {
      EXPECT_GT(matrix.error.sqnr_db(), 17) << matrix.name;
      EXPECT_LT(matrix.error.sqnr_db(), 24) << matrix.name;
      EXPECT_EQ(matrix.blocks.clipped, 0) << matrix.name;
    }
  }
}

TEST_F(ConvertFormats, FusedExpertsBecomeSeparateOnesWithTheSameValues) {
  auto tensors = TinyModel(
      TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kBf16, StoredFormat::kBf16, false});
  Randomize(tensors, "experts");
  WriteModel(Source(), TinyConfig(), Fused(tensors));
  MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint to = OpenModel(Target());
  ExpectQuantizedFrom(OpenModel(Source()), to);
  EXPECT_EQ(to.checkpoint().Find("model.layers.0.mlp.experts.gate_up_proj"), nullptr);
  EXPECT_NE(to.checkpoint().Find("model.layers.0.mlp.experts.3.gate_proj.weight_scale_2"), nullptr);

  WriteModel(Target("separate_source"), TinyConfig(), tensors);
  MustConvert(Target("separate_source"), Target("separate"), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint separate = OpenModel(Target("separate"));
  for (const CheckpointTensor& tensor : separate.checkpoint().tensors()) {
    ASSERT_NE(to.checkpoint().Find(tensor.name()), nullptr) << tensor.name();
    EXPECT_EQ(BytesOf(tensor.View()), BytesOf(to.checkpoint().Find(tensor.name())->View()));
  }
}

TEST_F(ConvertFormats, Nvfp4BackToBf16IsTheRoundedDecodedValue) {
  auto tensors = TinyModel(
      TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, true});
  Randomize(tensors, "experts");
  WriteModel(Source(), TinyConfig(), tensors);
  for (const TargetFormat format : {TargetFormat::kModelOptNvfp4, TargetFormat::kCtNvfp4}) {
    const fs::path nvfp4 = Target(TargetFormatName(format));
    const fs::path back = Target(std::string(TargetFormatName(format)) + "_back");
    MustConvert(Source(), nvfp4, To(format));
    MustConvert(nvfp4, back, To(TargetFormat::kBf16));
    const ModelCheckpoint middle = OpenModel(nvfp4);
    const ModelCheckpoint end = OpenModel(back);
    for (const ModuleKey& key : ExpertKeys(end.config())) {
      EXPECT_EQ(end.FindWeight(key)->format, StoredFormat::kBf16);
      std::vector<float> wanted = Decode(middle, key);
      EXPECT_FALSE(AllZero(wanted));
      for (float& x : wanted) x = RoundToBf16(x);
      EXPECT_TRUE(SameBits(Decode(end, key), wanted)) << Describe(key);
    }
    EXPECT_FALSE(ReadJsonFile(back / "config.json")->contains("quantization_config"));
    EXPECT_FALSE(fs::exists(back / "hf_quant_config.json"));
  }
}

TEST_F(ConvertFormats, Mxfp4BecomesNvfp4BitForBit) {
  for (const StoredFormat format : {StoredFormat::kDeepSeekMxfp4, StoredFormat::kCtMxfp4}) {
    for (const TargetFormat to_format : {TargetFormat::kModelOptNvfp4, TargetFormat::kCtNvfp4}) {
      Write({NamingStyle::kOfficial, format, StoredFormat::kFp8Block, true});
      const fs::path target =
          Target(fmt::format("{}_{}", StoredFormatName(format), TargetFormatName(to_format)));
      const ConversionReport report = MustConvert(Source(), target, To(to_format));
      const ModelCheckpoint from = OpenModel(Source());
      const ModelCheckpoint to = OpenModel(target);
      for (const ModuleKey& key : ExpertKeys(from.config())) {
        EXPECT_FALSE(AllZero(Decode(from, key)));
        EXPECT_TRUE(SameBits(Decode(from, key), Decode(to, key))) << Describe(key);
      }
      const bool ct = to_format == TargetFormat::kCtNvfp4;
      ExpectPassedThrough(target, 100, ct);
      EXPECT_EQ(to.checkpoint().Find("layers.0.ffn.experts.0.w1.scale"), nullptr);
      EXPECT_EQ(to.FindWeight(ModuleKey::Mtp(0, Module::kExpertGate, 0))->format,
                ct ? StoredFormat::kCtMxfp4 : format);
      for (const MatrixReport& matrix : report.shards.at(0).matrices) {
        EXPECT_EQ(matrix.action, ConvertAction::kLossless);
        EXPECT_EQ(matrix.error.count, matrix.rows * matrix.columns);
        EXPECT_EQ(matrix.differing, 0) << matrix.name;
        EXPECT_TRUE(matrix.requantized.empty()) << matrix.name;
      }
    }
  }
}

TEST_F(ConvertFormats, Mxfp4IsExactOver17BinadesAndListsBlocksBeyond) {
  auto tensors = TinyModel(TinyConfig(), {});
  const std::string w1 = "layers.1.ffn.experts.2.w1";  // [32, 64]: two blocks of 32 a row
  const std::string w3 = "layers.1.ffn.experts.2.w3";
  std::string& gate = TensorNamed(tensors, w1 + ".scale").bytes;
  std::string& up = TensorNamed(tensors, w3 + ".scale").bytes;
  std::fill(gate.begin(), gate.end(), char(120));
  std::fill(up.begin(), up.end(), char(116));
  gate[3] = char(103);  // 17 below the largest: row 1 block 1
  gate[4] = char(102);  // 18 below: row 2 block 0
  up[5] = char(103);    // 17 below gate's largest, 13 below its own
  up[6] = char(101);    // 19 below gate's largest, though 15 below its own: row 3 block 0
  gate[8] = char(200);  // an all-zero block does not count
  std::string& codes = TensorNamed(tensors, w1 + ".weight").bytes;
  std::fill(codes.begin() + 8 * 16, codes.begin() + 9 * 16, char(0x80));
  WriteModel(Source(), TinyConfig(), tensors);

  const ConversionReport report = MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint from = OpenModel(Source());
  const ModelCheckpoint to = OpenModel(Target());
  for (const auto& [module, row] : {std::pair{Module::kExpertGate, 2}, {Module::kExpertUp, 3}}) {
    const ModuleKey key = ModuleKey::Layer(1, module, 2);
    EXPECT_EQ(to.FindWeight(key)->matrix.global_scale.value(), std::ldexp(1.0f, 120 - 127 - 8));
    std::vector<float> wanted = Decode(from, key);
    const auto block = wanted.begin() + row * 64;
    EXPECT_FALSE(std::all_of(block, block + 32, [](float x) { return x == 0; }));
    const std::vector<float> got = Decode(to, key);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const bool beyond = static_cast<int>(i / 32) == row * 2;
      if (beyond) {  // what no scale can express becomes 0 or the smallest number there is
        EXPECT_LE(std::abs(got[i] - wanted[i]), std::ldexp(6.0f, 102 - 127));
      } else {
        EXPECT_EQ(got[i], wanted[i]) << Describe(key) << " element " << i;
      }
    }
  }
  for (const MatrixReport& matrix : report.shards.at(0).matrices) {
    if (matrix.name == w1 + ".weight" || matrix.name == w3 + ".weight") {
      ASSERT_EQ(matrix.requantized.size(), 1u) << matrix.name;
      EXPECT_EQ(matrix.requantized[0].row, matrix.name == w1 + ".weight" ? 2 : 3);
      EXPECT_EQ(matrix.requantized[0].block, 0);
      EXPECT_GT(matrix.differing, 0);
      EXPECT_LE(matrix.differing, 32);
    } else {
      EXPECT_TRUE(matrix.requantized.empty()) << matrix.name;
      EXPECT_EQ(matrix.differing, 0) << matrix.name;
    }
  }
  const std::string text = ToText(report);
  EXPECT_NE(text.find(w1 + ".weight row 2 block 0"), std::string::npos) << text;
  EXPECT_NE(text.find("2 blocks of 32 lie more than 17 binades"), std::string::npos) << text;
}

TEST_F(ConvertFormats, Mxfp4WithANanScaleIsRefusedByName) {
  auto tensors = TinyModel(TinyConfig(), {});
  TensorNamed(tensors, "layers.2.ffn.experts.1.w2.scale").bytes[5] = char(0xff);
  WriteModel(Source(), TinyConfig(), tensors);
  const std::string error = ErrorOf(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  EXPECT_NE(error.find("layers.2.ffn.experts.1.w2"), std::string::npos) << error;
  EXPECT_NE(error.find("0xff"), std::string::npos) << error;
}

TEST_F(ConvertFormats, ModelOptToCompressedTensorsAndBackKeepsEveryByteButTheReciprocals) {
  auto tensors = TinyModel(TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kModelOptNvfp4,
                                          StoredFormat::kBf16, true});
  std::mt19937 random(5);
  for (TestTensor& tensor : tensors) {
    const bool scalar =
        tensor.name.ends_with(".weight_scale_2") || tensor.name.ends_with(".input_scale");
    if (!scalar) continue;
    const float value = 1e-4f + 1e-9f * static_cast<float>(random() % 1000000);
    std::memcpy(tensor.bytes.data(), &value, sizeof(value));
  }
  // Other quantizers' zero blocks: any scale byte over zero codes.
  const std::string gate = "model.layers.0.mlp.experts.0.gate_proj";
  TensorNamed(tensors, gate + ".weight").bytes.replace(0, 16, 16, '\0');
  TensorNamed(tensors, gate + ".weight_scale").bytes[0] = 0x38;
  TensorNamed(tensors, gate + ".weight_scale").bytes[1] = 0x20;
  WriteModel(Source(), TinyConfig(), tensors);

  MustConvert(Source(), Target("ct"), To(TargetFormat::kCtNvfp4));
  const ConversionReport report =
      MustConvert(Target("ct"), Target("back"), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint ct = OpenModel(Target("ct"));
  EXPECT_EQ(ct.FindWeight(ModuleKey::Layer(0, Module::kExpertGate, 0))->format,
            StoredFormat::kCtNvfp4);
  EXPECT_EQ(ct.checkpoint().Find(gate + ".weight_global_scale")->info->shape, Shape{1});
  EXPECT_NE(ct.checkpoint().Find(gate + ".input_global_scale"), nullptr);
  const ModelCheckpoint back = OpenModel(Target("back"));
  ASSERT_EQ(back.checkpoint().tensors().size(), tensors.size());
  int changed = 0;
  for (const TestTensor& tensor : tensors) {
    const CheckpointTensor* result = back.checkpoint().Find(tensor.name);
    ASSERT_NE(result, nullptr) << tensor.name;
    ASSERT_EQ(result->info->dtype, tensor.dtype) << tensor.name;
    ASSERT_EQ(result->info->shape, tensor.shape) << tensor.name;
    if (BytesOf(result->View()) == tensor.bytes) continue;
    ++changed;
    EXPECT_TRUE(tensor.name.ends_with("_scale_2") || tensor.name.ends_with("input_scale"))
        << tensor.name;
    float before = 0;
    std::memcpy(&before, tensor.bytes.data(), sizeof(before));
    const float after = result->View().Load<float>(0);
    EXPECT_TRUE(after == std::nextafter(before, 0.0f) || after == std::nextafter(before, 1e9f))
        << tensor.name << " " << before << " " << after;
  }
  EXPECT_GT(changed, 0) << "the values were chosen so that some reciprocals round";
  for (const MatrixReport& matrix : report.shards.at(0).matrices) {
    EXPECT_EQ(matrix.action, ConvertAction::kRewrap);
    EXPECT_TRUE(matrix.same_global_scale) << "a divisor's multiplier is one reciprocal for all";
  }
}

TEST_F(ConvertFormats, CodesOfTheTypeF4BecomeBytesAsEveryReaderOfNvfp4ExpectsThem) {
  auto tensors = TinyModel(TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kModelOptNvfp4,
                                          StoredFormat::kBf16, false});
  WriteModel(Source(), TinyConfig(), tensors);
  const std::string gate = "model.layers.0.mlp.experts.0.gate_proj.weight";
  const std::string bytes = TensorNamed(tensors, gate).bytes;
  TensorNamed(tensors, gate).dtype = DType::kF4;
  TensorNamed(tensors, gate).shape[1] *= 2;
  WriteModel(dir_.path() / "f4", TinyConfig(), tensors);
  MustConvert(dir_.path() / "f4", Target(), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint result = OpenModel(Target());
  EXPECT_EQ(result.checkpoint().Find(gate)->info->dtype, DType::kU8);
  EXPECT_EQ(BytesOf(result.checkpoint().Find(gate)->View()), bytes);
}

TEST_F(ConvertFormats, UnusedTensorsOfAnyTypeAreCopied) {
  auto tensors = TinyModel(
      TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, false});
  tensors.push_back({"four", DType::kF4, {2, 3}, "abc"});
  tensors.push_back({"complex", DType::kC64, {1}, "realimag"});
  tensors.push_back({"later", DType::kUnknown, {9}, "0123456"});
  WriteModel(Source(), TinyConfig(), tensors);
  MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint result = OpenModel(Target());
  for (const char* name : {"four", "complex", "later"}) {
    const CheckpointTensor* tensor = result.checkpoint().Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    const TestTensor& source = TensorNamed(tensors, name);
    EXPECT_EQ(tensor->info->dtype_name(), DTypeName(source.dtype));
    EXPECT_EQ(tensor->info->shape, source.shape);
    EXPECT_EQ(BytesOf(tensor->View()), source.bytes);
  }
}

struct StoredTensor {
  std::string name;
  DType dtype;
  Shape shape;
};

TEST_F(ConvertFormats, CompressedTensorsHasOneClaimForWhatStaysQuantizedAndNamesThatGoWithIt) {
  struct Case {
    StoredFormat dense;
    std::vector<StoredTensor> stored;
    Json strategy;
  };
  const std::string wq_b = "layers.1.attn.wq_b";  // [128, 32]
  for (const Case& c : {Case{StoredFormat::kFp8Block,
                             {{wq_b + ".weight", DType::kF8E4m3, {128, 32}},
                              {wq_b + ".weight_scale", DType::kF32, {1, 1}}},
                             {{"strategy", "block"}, {"block_structure", {128, 128}}}},
                        Case{StoredFormat::kFp8Channel,
                             {{wq_b + ".weight", DType::kF8E4m3, {128, 32}},
                              {wq_b + ".weight_scale", DType::kF32, {128, 1}}},
                             {{"strategy", "channel"}}},
                        Case{StoredFormat::kFp8Tensor,
                             {{wq_b + ".weight", DType::kF8E4m3, {128, 32}},
                              {wq_b + ".weight_scale", DType::kF32, {1}}},
                             {{"strategy", "tensor"}}}}) {
    Write({NamingStyle::kOfficial, StoredFormat::kDeepSeekMxfp4, c.dense, true});
    const fs::path target = Target(StoredFormatName(c.dense));
    MustConvert(Source(), target, To(TargetFormat::kCtNvfp4));
    const ModelCheckpoint to = OpenModel(target);
    for (const StoredTensor& wanted : c.stored) {
      const CheckpointTensor* tensor = to.checkpoint().Find(wanted.name);
      ASSERT_NE(tensor, nullptr) << wanted.name;
      EXPECT_EQ(tensor->info->dtype, wanted.dtype) << wanted.name;
      EXPECT_EQ(tensor->info->shape, wanted.shape) << wanted.name;
    }
    for (const CheckpointTensor& tensor : to.checkpoint().tensors()) {
      EXPECT_FALSE(tensor.name().ends_with(".scale")) << tensor.name();
    }
    ExpectPassedThrough(target, 100, true);
    const Json section = (*ReadJsonFile(target / "config.json"))["quantization_config"];
    int claims = 0;
    for (const auto& [name, group] : section["config_groups"].items()) {
      const auto targets = group["targets"].get<std::set<std::string>>();
      if (!targets.contains(wq_b)) continue;
      ++claims;
      EXPECT_EQ(group["format"], "float-quantized");
      for (const auto& [key, value] : c.strategy.items()) EXPECT_EQ(group["weights"][key], value);
    }
    EXPECT_EQ(claims, 1);
  }
}

TEST_F(ConvertFormats, ToBf16ExpertsWithHuggingFaceNamesBecomeOneTensorWhereverTheyLie) {
  for (const StoredFormat experts : {StoredFormat::kModelOptNvfp4, StoredFormat::kBf16}) {
    const auto tensors =
        TinyModel(TinyConfig(), {NamingStyle::kHuggingFace, experts, StoredFormat::kBf16, false});
    WriteSharded(Source(), TinyConfig(), tensors, [](const std::string& name) {
      return static_cast<int>(std::hash<std::string>()(name) % 3);
    });
    const fs::path target = Target(StoredFormatName(experts));
    const ConversionReport report = MustConvert(Source(), target, To(TargetFormat::kBf16));
    const ModelCheckpoint from = OpenModel(Source());
    const ModelCheckpoint to = OpenModel(target);
    for (const ModuleKey& key : ExpertKeys(from.config())) {
      EXPECT_FALSE(AllZero(Decode(from, key)));
      EXPECT_TRUE(SameBits(Decode(from, key), Decode(to, key))) << Describe(key);
    }
    const CheckpointTensor* gate_up =
        to.checkpoint().Find("model.layers.2.mlp.experts.gate_up_proj");
    ASSERT_NE(gate_up, nullptr);
    EXPECT_EQ(gate_up->info->dtype, DType::kBf16);
    EXPECT_EQ(gate_up->info->shape, (Shape{4, 64, 64}));
    EXPECT_EQ(to.checkpoint().Find("model.layers.2.mlp.experts.0.gate_proj.weight"), nullptr);
    const bool fused = experts == StoredFormat::kBf16;
    EXPECT_NE(ToText(report).find(fused ? "fused" : "dequantized"), std::string::npos);
    fs::remove_all(Source());
  }
}

TEST_F(ConvertFormats, ANameThatOnlySomeToolWritesBecomesTheUsualOne) {
  auto tensors = TinyModel(
      TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kBf16, StoredFormat::kBf16, false});
  TensorNamed(tensors, "model.layers.0.self_attn.kv_norm.weight").name =
      "model.layers.0.self_attn.norm.weight";
  WriteModel(Source(), TinyConfig(), tensors);
  MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint to = OpenModel(Target());
  EXPECT_NE(to.checkpoint().Find("model.layers.0.self_attn.kv_norm.weight"), nullptr);
  EXPECT_EQ(to.checkpoint().Find("model.layers.0.self_attn.norm.weight"), nullptr);
}

TEST_F(ConvertFormats, RewrappingRefusesScaleBytesThatAreNoScales) {
  for (const char byte : {char(0x7f), char(0x80)}) {
    auto tensors = TinyModel(TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kModelOptNvfp4,
                                            StoredFormat::kFp8Block, false});
    TensorNamed(tensors, "layers.0.ffn.experts.3.w3.weight_scale").bytes[7] = byte;
    WriteModel(Source(), TinyConfig(), tensors);
    for (const TargetFormat format : {TargetFormat::kCtNvfp4, TargetFormat::kBf16}) {
      const std::string error = ErrorOf(Source(), Target(), To(format));
      EXPECT_NE(error.find("layers.0.ffn.experts.3.w3"), std::string::npos) << error;
      EXPECT_NE(error.find("[1, 3]"), std::string::npos) << error;
      fs::remove_all(Target());
    }
  }
}

TEST_F(ConvertFormats, Fp8ExpertsBecomeNvfp4AndTheOldScalesGo) {
  Write({NamingStyle::kOfficial, StoredFormat::kFp8Block, StoredFormat::kFp8Block, true});
  const ConversionReport report = MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const ModelCheckpoint to = OpenModel(Target());
  ExpectQuantizedFrom(OpenModel(Source()), to);
  ExpectPassedThrough(Target(), 100);
  EXPECT_EQ(to.checkpoint().Find("layers.0.ffn.experts.0.w1.scale"), nullptr);
  EXPECT_NE(to.checkpoint().Find("mtp.0.ffn.experts.0.w1.scale"), nullptr);
  EXPECT_EQ(report.shards.at(0).matrices.at(0).from, StoredFormat::kFp8Block);
}

TEST_F(ConvertFormats, TheInputScaleOfFp8IsStatedForTheRangeOfNvfp4) {
  auto tensors = TinyModel(TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kFp8Tensor,
                                          StoredFormat::kFp8Block, false});
  std::vector<TestTensor> scales;
  for (const TestTensor& tensor : tensors) {
    if (tensor.name.find(".experts.") == std::string::npos) continue;
    if (!tensor.name.ends_with(".weight_scale")) continue;
    const std::string base = tensor.name.substr(0, tensor.name.rfind('.'));
    scales.push_back(MakeScalar(base + ".input_scale", 4.0f / 448));
  }
  ASSERT_FALSE(scales.empty());
  tensors.insert(tensors.end(), scales.begin(), scales.end());
  WriteModel(Source(), TinyConfig(), tensors);
  MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const StoredWeight weight =
      *OpenModel(Target()).FindWeight(ModuleKey::Layer(1, Module::kExpertUp, 1));
  ASSERT_TRUE(weight.input_scale);
  EXPECT_FLOAT_EQ(weight.input_scale->value(), 4.0f / 2688);
}

TEST_F(ConvertFormats, ToBf16EveryQuantizedMatrixIsDequantizedDraftStagesToo) {
  Write({});  // MXFP4 experts, FP8 elsewhere
  MustConvert(Source(), Target(), To(TargetFormat::kBf16));
  const ModelCheckpoint from = OpenModel(Source());
  const ModelCheckpoint to = OpenModel(Target());
  size_t quantized = 0;
  for (const auto& [key, stored] : from.modules()) {
    if (!IsMatrix(key.module)) continue;
    EXPECT_EQ(to.FindWeight(key)->format, StoredFormat::kBf16) << Describe(key);
    EXPECT_TRUE(SameBits(Decode(from, key), Decode(to, key))) << Describe(key);
    quantized += from.FindWeight(key)->format != StoredFormat::kBf16;
  }
  EXPECT_GT(quantized, 60u);
  for (const CheckpointTensor& tensor : to.checkpoint().tensors()) {
    EXPECT_FALSE(tensor.name().ends_with(".scale")) << tensor.name();
  }
}

TEST_F(ConvertFormats, SharedExpertsAreConvertedOnlyWhenAskedFor) {
  auto tensors = TinyModel(
      TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, true});
  Randomize(tensors, "experts");
  WriteModel(Source(), TinyConfig(), tensors);
  ConvertOptions options = To(TargetFormat::kModelOptNvfp4);
  MustConvert(Source(), Target("experts"), options);
  options.scope = ConvertScope::kExpertsAndShared;
  MustConvert(Source(), Target("both"), options);
  const ModelCheckpoint experts = OpenModel(Target("experts"));
  const ModelCheckpoint both = OpenModel(Target("both"));
  const auto gate = both.FindWeight(ModuleKey::Layer(1, Module::kSharedGate));
  const auto up = both.FindWeight(ModuleKey::Layer(1, Module::kSharedUp));
  EXPECT_EQ(gate->format, StoredFormat::kModelOptNvfp4);
  EXPECT_EQ(gate->matrix.global_scale, up->matrix.global_scale);
  EXPECT_EQ(both.FindWeight(ModuleKey::Mtp(0, Module::kSharedGate))->format, StoredFormat::kBf16);
  EXPECT_EQ(experts.FindWeight(ModuleKey::Layer(1, Module::kSharedGate))->format,
            StoredFormat::kBf16);
}

TEST_F(ConvertFormats, FourOverSixIsCloserThanSixAlone) {
  auto tensors = TinyModel(
      TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, false});
  Randomize(tensors, "experts");
  WriteModel(Source(), TinyConfig(), tensors);
  ConvertOptions options = To(TargetFormat::kModelOptNvfp4);
  const ConversionReport six = MustConvert(Source(), Target("six"), options);
  options.four_over_six = true;
  const ConversionReport four = MustConvert(Source(), Target("four"), options);
  double six_noise = 0;
  double four_noise = 0;
  for (const MatrixReport& matrix : six.shards.at(0).matrices) six_noise += matrix.error.noise;
  for (const MatrixReport& matrix : four.shards.at(0).matrices) four_noise += matrix.error.noise;
  EXPECT_GT(four_noise, 0);
  EXPECT_LT(four_noise, six_noise);
}

TEST_F(ConvertFormats, AMatrixWhoseRowsAreNoMultipleOf16StaysAndIsReported) {
  Json config = TinyConfig();
  config["moe_intermediate_size"] = 40;  // down_proj is [64, 40]
  auto tensors = TinyModel(
      config, {NamingStyle::kHuggingFace, StoredFormat::kBf16, StoredFormat::kBf16, false});
  WriteModel(Source(), config, Fused(tensors));
  const ConversionReport report = MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  ASSERT_EQ(report.kept.size(), 3u);
  EXPECT_EQ(report.kept[0].reason, "40 columns are no multiple of 16");
  const ModelCheckpoint to = OpenModel(Target());
  EXPECT_NE(to.checkpoint().Find("model.layers.0.mlp.experts.down_proj"), nullptr);
  EXPECT_EQ(to.FindWeight(ModuleKey::Layer(0, Module::kExpertGate, 1))->format,
            StoredFormat::kModelOptNvfp4);
}

// Expert 2 of layer 1 is BF16 among NVFP4 ones, as the list says.
TEST_F(ConvertFormats, AnUncalibratedExpertIn16BitsStaysSoAndEveryResultSaysIt) {
  const TinyFormats nvfp4{NamingStyle::kOfficial, kNv, StoredFormat::kBf16, false};
  std::vector<TestTensor> tensors = TinyModel(TinyConfig(), nvfp4);
  const auto of_expert = [](const TestTensor& tensor) {
    return tensor.name.starts_with("layers.1.ffn.experts.2.");
  };
  std::erase_if(tensors, of_expert);
  for (const TestTensor& tensor :
       TinyModel(TinyConfig(), {nvfp4.style, StoredFormat::kBf16, nvfp4.dense, false})) {
    if (of_expert(tensor)) tensors.push_back(tensor);
  }
  Json config = TinyConfig();
  const std::vector<std::string> excluded = {
      "layers.1.ffn.experts.2.w1", "layers.1.ffn.experts.2.w2", "layers.1.ffn.experts.2.w3"};
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", excluded}};
  WriteModel(Source(), config, tensors);
  for (const TargetFormat format : {TargetFormat::kBf16, TargetFormat::kCtNvfp4}) {
    const fs::path target = Target(TargetFormatName(format));
    const ConversionReport report = MustConvert(Source(), target, To(format));
    const ModelCheckpoint from = OpenModel(Source());
    const ModelCheckpoint to = OpenModel(target);
    for (const ModuleKey& key : ExpertKeys(from.config())) {
      EXPECT_TRUE(SameBits(Decode(from, key), Decode(to, key))) << Describe(key);
    }
    EXPECT_EQ(report.kept.size(), format == TargetFormat::kBf16 ? 0u : 3u);
    const Findings findings = Verify(target, {})->findings;
    for (const Finding& finding : findings) {
      EXPECT_EQ(finding.severity, Severity::kNote) << finding.where << ": " << finding.message;
    }
  }
  const Json section = ReadJsonFile(Target("nvfp4-ct") / "config.json")->at("quantization_config");
  for (const char* part : {"w1", "w2", "w3"}) {
    const std::string name = fmt::format("re:.*layers\\.1\\.ffn\\.experts\\.2\\.{}$", part);
    EXPECT_NE(std::find(section["ignore"].begin(), section["ignore"].end(), name),
              section["ignore"].end())
        << section["ignore"].dump();
  }
}

TEST_F(ConvertFormats, AnAnnouncedKvCacheIsCarriedOverWithItsScales) {
  std::vector<TestTensor> tensors =
      TinyModel(TinyConfig(), {NamingStyle::kOfficial, kNv, StoredFormat::kBf16, false});
  tensors.push_back(MakeScalar("layers.0.attn.k_scale", 0.5f));
  Json config = TinyConfig();
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}};
  WriteModel(Source(), config, tensors);
  MustConvert(Source(), Target("ct"), To(TargetFormat::kCtNvfp4));
  MustConvert(Target("ct"), Target("back"), To(TargetFormat::kModelOptNvfp4));
  const auto section = [&](const char* target) {
    return ReadJsonFile(Target(target) / "config.json")->at("quantization_config");
  };
  EXPECT_EQ(section("ct")["kv_cache_scheme"]["num_bits"], 8);
  EXPECT_EQ(section("back")["kv_cache_quant_algo"], "FP8");
  EXPECT_NE(OpenModel(Target("back")).checkpoint().Find("layers.0.attn.k_scale"), nullptr);
}

TEST_F(ConvertFormats, NanAndInfinityInTheSourceAreRefusedWithTheirPlace) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto tensors = TinyModel(
        TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, false});
    const Bf16 value = ToBf16(bad);
    std::memcpy(TensorNamed(tensors, "layers.1.ffn.experts.0.w2.weight").bytes.data() +
                    (3 * 32 + 5) * sizeof(value),
                &value, sizeof(value));
    WriteModel(Source(), TinyConfig(), tensors);
    const std::string error = ErrorOf(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
    EXPECT_NE(error.find("layers.1.ffn.experts.0.w2.weight"), std::string::npos) << error;
    EXPECT_NE(error.find("[3, 5]"), std::string::npos) << error;
    fs::remove_all(Target());
  }
}

TEST_F(ConvertFormats, GateAndUpOfDifferentFormatsAreRefused) {
  auto tensors = TinyModel(TinyConfig(), {});
  const auto bf16 = TinyModel(
      TinyConfig(), {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, false});
  const std::string w3 = "layers.0.ffn.experts.1.w3";
  Remove(tensors, w3 + ".scale");
  TestTensor& up = TensorNamed(tensors, w3 + ".weight");
  for (const TestTensor& tensor : bf16) {
    if (tensor.name == up.name) up = tensor;
  }
  WriteModel(Source(), TinyConfig(), tensors);
  const std::string error = ErrorOf(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  EXPECT_NE(error.find("must have one format"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(Target()));
}

TEST_F(ConvertFormats, NothingToConvertIsAnError) {
  Write({NamingStyle::kOfficial, StoredFormat::kModelOptNvfp4, StoredFormat::kFp8Block, false});
  const std::string error = ErrorOf(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  EXPECT_NE(error.find("nothing to convert to nvfp4"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(Target()));
}

TEST_F(ConvertFormats, OfficialFp8ConfigsKeepTheirSectionAndNameTheExpertsFormat) {
  Json config = TinyConfig();
  config["expert_dtype"] = "fp4";
  config["quantization_config"] = {
      {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"activation_scheme", "dynamic"}};
  WriteModel(Source(), config, TinyModel(config, {}));
  MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const Json section = (*ReadJsonFile(Target() / "config.json"))["quantization_config"];
  EXPECT_EQ(section["quant_method"], "fp8");
  EXPECT_EQ(section["weight_block_size"], Json({128, 128}));
  EXPECT_EQ(section["moe_quant_algo"], "NVFP4");
  EXPECT_EQ(section["quant_algo"], "MIXED_PRECISION");
  EXPECT_TRUE(section["quantized_layers"].contains("layers.2.ffn.experts"));
  EXPECT_FALSE(section["quantized_layers"].contains("mtp.0.ffn.experts"));
  const auto ignores = section["ignore"].get<std::set<std::string>>();
  EXPECT_TRUE(ignores.contains("layers.*.attn.wq_a"));
  EXPECT_TRUE(ignores.contains("mtp.*.ffn.experts.*"));
  EXPECT_FALSE(ignores.contains("layers.*.ffn.experts.*"));
  const Json side = *ReadJsonFile(Target() / "hf_quant_config.json");
  EXPECT_EQ(side["quantization"]["exclude_modules"], section["ignore"]);
  EXPECT_EQ(side["quantization"]["moe_quant_algo"], "NVFP4");
}

TEST_F(ConvertFormats, Bf16ConfigsBecomeModelOptOrCompressedTensors) {
  Write({NamingStyle::kHuggingFace, StoredFormat::kBf16, StoredFormat::kBf16, false});
  MustConvert(Source(), Target("nvfp4"), To(TargetFormat::kModelOptNvfp4));
  MustConvert(Source(), Target("ct"), To(TargetFormat::kCtNvfp4));
  const Json modelopt = (*ReadJsonFile(Target("nvfp4") / "config.json"))["quantization_config"];
  EXPECT_EQ(modelopt["quant_method"], "modelopt");
  EXPECT_EQ(modelopt["quant_algo"], "NVFP4");
  const Json ct = (*ReadJsonFile(Target("ct") / "config.json"))["quantization_config"];
  EXPECT_EQ(ct["quant_method"], "compressed-tensors");
  EXPECT_EQ(ct["format"], "nvfp4-pack-quantized");
  EXPECT_EQ(ct["config_groups"]["group_0"]["targets"],
            Json({"re:.*model\\.layers\\.\\d+\\.mlp\\.experts\\..*"}));
  EXPECT_FALSE(fs::exists(Target("ct") / "hf_quant_config.json"));
}

TEST_F(ConvertFormats, VerifyFindsNothingToComplainAboutInAnyResult) {
  Json narrow = TinyConfig();
  narrow["moe_intermediate_size"] = 40;  // down_proj stays
  for (const StoredFormat experts :
       {StoredFormat::kBf16, StoredFormat::kFp8Block, StoredFormat::kDeepSeekMxfp4,
        StoredFormat::kModelOptNvfp4, StoredFormat::kCtNvfp4}) {
    for (const TargetFormat format :
         {TargetFormat::kModelOptNvfp4, TargetFormat::kCtNvfp4, TargetFormat::kBf16}) {
      const bool bf16 = experts == StoredFormat::kBf16;
      const Json config = bf16 ? narrow : TinyConfig();
      const StoredFormat dense = bf16 ? StoredFormat::kBf16 : StoredFormat::kFp8Block;
      const bool already =
          (experts == StoredFormat::kModelOptNvfp4 && format == TargetFormat::kModelOptNvfp4) ||
          (experts == StoredFormat::kCtNvfp4 && format == TargetFormat::kCtNvfp4);
      if (already || (bf16 && format == TargetFormat::kBf16)) continue;
      WriteModel(Source(), config, TinyModel(config, {NamingStyle::kOfficial, experts, dense}));
      const fs::path target =
          Target(fmt::format("{}_{}", StoredFormatName(experts), TargetFormatName(format)));
      MustConvert(Source(), target, To(format));
      const Verification verification = *Verify(target, VerifyOptions{});
      for (const Finding& finding : verification.findings) {
        // The test values have few magnitudes, so many blocks reach the tensor's largest.
        if (finding.message.find("at the maximum 448") != std::string::npos) continue;
        EXPECT_EQ(finding.severity, Severity::kNote)
            << target << ": " << finding.where << ": " << finding.message;
      }
    }
  }
}

TEST_F(ConvertFormats, TheIndexStatesTheBytesOfAllTensors) {
  Write({});
  MustConvert(Source(), Target(), To(TargetFormat::kModelOptNvfp4));
  const Json index = *ReadJsonFile(Target() / "model.safetensors.index.json");
  const ModelCheckpoint to = OpenModel(Target());
  EXPECT_EQ(index["metadata"]["total_size"], to.checkpoint().tensor_bytes());
  EXPECT_EQ(index["weight_map"].size(), to.checkpoint().tensors().size());
}

}  // namespace
}  // namespace halfbyte
