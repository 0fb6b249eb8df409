#include "checkpoint/verify.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "checkpoint/checkpoint_test_files.h"
#include "checkpoint/inspect.h"
#include "checkpoint/module_pattern.h"
#include "checkpoint/quantization_config.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

using test::kCt;
using test::kMx;
using test::kNv;
using test::MakeScalar;
using test::MakeTensor;
using test::TempDir;
using test::TensorNamed;
using test::TestTensor;
using test::TinyConfig;
using test::TinyModel;
using test::WriteModel;

constexpr char kExpert[] = "layers.1.ffn.experts.2.w1";

std::vector<TestTensor> Model(StoredFormat experts) {
  return TinyModel(TinyConfig(), {NamingStyle::kOfficial, experts});
}

Verification Check(const TempDir& dir, VerifyOptions options = {}) {
  options.threads = 3;
  const auto verification = Verify(dir.path(), options);
  EXPECT_TRUE(verification) << verification.error().message;
  return *verification;
}

// Whether there is a finding of that severity about that place with those words.
bool Finds(const Findings& findings, Severity severity, const std::string& where,
           const std::string& words) {
  for (const Finding& finding : findings) {
    if (finding.severity == severity && finding.where.find(where) != std::string::npos &&
        finding.message.find(words) != std::string::npos) {
      return true;
    }
  }
  ADD_FAILURE() << where << ": " << words << " not in\n" << FindingsText(findings, 99);
  return false;
}

bool HasWarnings(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.severity != Severity::kNote; });
}

TEST(Verify, FindsNothingInSoundModelsOfEveryFormat) {  // R109
  for (const StoredFormat format :
       {StoredFormat::kBf16, kNv, kCt, kMx, StoredFormat::kCtMxfp4, StoredFormat::kFp8Block}) {
    const TempDir dir;
    WriteModel(dir.path(), TinyConfig(), Model(format));
    const Verification verification = Check(dir);
    EXPECT_TRUE(verification.ok());
    EXPECT_FALSE(HasWarnings(verification.findings)) << FindingsText(verification.findings, 99);
  }
}

TEST(Verify, NamesTensorRowAndBlockOfAnInvalidBlockScale) {
  for (const uint8_t byte : {0x7f, 0x80, 0xff, 0xb8}) {
    const TempDir dir;
    std::vector<TestTensor> tensors = Model(kNv);
    TensorNamed(tensors, fmt::format("{}.weight_scale", kExpert)).bytes[4 * 3 + 2] =
        static_cast<char>(byte);
    WriteModel(dir.path(), TinyConfig(), tensors);
    const Verification verification = Check(dir);
    EXPECT_FALSE(verification.ok());
    Finds(verification.findings, Severity::kError, "layers.1.ffn.experts.2.w1.weight_scale",
          fmt::format("row 3, block 2: byte 0x{:02x}", byte));
  }
}

TEST(Verify, AcceptsEveryBlockScaleThatZeroBlocksCarry) {  // R105
  for (const uint8_t byte : {0x00, 0x01, 0x08, 0x20, 0x38}) {
    const TempDir dir;
    std::vector<TestTensor> tensors = Model(kNv);
    TensorNamed(tensors, fmt::format("{}.weight_scale", kExpert)).bytes[5] =
        static_cast<char>(byte);
    WriteModel(dir.path(), TinyConfig(), tensors);
    EXPECT_TRUE(Check(dir).ok());
  }
}

TEST(Verify, RefusesE8m0NanInMxfp4AndFp8) {  // R111
  for (const char* name : {"layers.1.ffn.experts.2.w1.scale", "layers.0.attn.wq_a.scale"}) {
    const TempDir dir;
    std::vector<TestTensor> tensors = Model(kMx);
    TensorNamed(tensors, name).bytes.back() = '\xff';
    WriteModel(dir.path(), TinyConfig(), tensors);
    Finds(Check(dir).findings, Severity::kError, name, "byte 0xff");
  }
}

TEST(Verify, RefusesNanAndInfinityInWeights) {
  const TempDir dir;
  std::vector<TestTensor> tensors = Model(kMx);
  TensorNamed(tensors, "layers.0.attn.wq_a.weight").bytes[65] = '\x7f';  // FP8 NaN
  TensorNamed(tensors, "norm.weight").bytes.replace(8, 4, std::string("\0\0\x80\x7f", 4));
  TensorNamed(tensors, "head.weight").bytes.replace(0, 2, "\xff\x7f");
  WriteModel(dir.path(), TinyConfig(), tensors);
  const Findings findings = Check(dir).findings;
  Finds(findings, Severity::kError, "layers.0.attn.wq_a.weight", "row 1, column 1");
  Finds(findings, Severity::kError, "norm.weight", "column 2");
  Finds(findings, Severity::kError, "head.weight", "1 of 3072 elements");
}

TEST(Verify, RefusesGlobalScalesThatCannotBeUsed) {
  for (const StoredFormat format : {kNv, kCt}) {
    for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      for (const bool input : {false, true}) {
        const std::string part = format == kNv
                                     ? (input ? "input_scale" : "weight_scale_2")
                                     : (input ? "input_global_scale" : "weight_global_scale");
        const TempDir dir;
        std::vector<TestTensor> tensors = Model(format);
        const std::string name = fmt::format("{}.{}", kExpert, part);
        TensorNamed(tensors, name) = MakeTensor<float>(name, DType::kF32, {1}, {value});
        WriteModel(dir.path(), TinyConfig(), tensors);
        Finds(Check(dir).findings, Severity::kError, name, "must be positive");
      }
    }
  }
}

TEST(Verify, WarnsOfTheOtherConventionAndOfUncalibratedExperts) {
  const auto change = [](StoredFormat format, const char* part, float value, const char* words) {
    const TempDir dir;
    std::vector<TestTensor> tensors = Model(format);
    const std::string name = fmt::format("{}.{}", kExpert, part);
    TensorNamed(tensors, name) = MakeTensor<float>(name, DType::kF32, {1}, {value});
    WriteModel(dir.path(), TinyConfig(), tensors);
    const Verification verification = Check(dir);
    EXPECT_TRUE(verification.ok());
    Finds(verification.findings, Severity::kWarning, name, words);
  };
  change(kNv, "weight_scale_2", 3584, "other convention");
  change(kNv, "input_scale", 1344, "other convention");
  change(kCt, "weight_global_scale", 0.000279017857f, "other convention");
  change(kCt, "input_global_scale", 1, "never reached");
}

TEST(Verify, WarnsOfGateAndUpWithDifferentGlobalScales) {  // R107
  const TempDir dir;
  std::vector<TestTensor> tensors = Model(kNv);
  TensorNamed(tensors, "layers.1.ffn.experts.2.w3.weight_scale_2") =
      MakeScalar("layers.1.ffn.experts.2.w3.weight_scale_2", 0x1p-7f);
  WriteModel(dir.path(), TinyConfig(), tensors);
  const Verification verification = Check(dir);
  EXPECT_TRUE(verification.ok());
  Finds(verification.findings, Severity::kWarning, "layers.1.ffn.experts.2.w1.weight",
        "gate and up have different global scales, 0.015625 and 0.0078125");
}

// kExpert's matrix becomes NVFP4 of `values` under that global scale in DIR/nvfp4, and the values
// themselves in DIR/source. How many blocks the quantizer clipped.
int64_t WriteQuantized(const TempDir& dir, const std::vector<float>& values, float global_scale) {
  std::vector<TestTensor> tensors = Model(kNv);
  std::string& codes = TensorNamed(tensors, fmt::format("{}.weight", kExpert)).bytes;
  std::string& scales = TensorNamed(tensors, fmt::format("{}.weight_scale", kExpert)).bytes;
  Nvfp4BlockStats stats;
  for (size_t b = 0; b < scales.size(); ++b) {
    Nvfp4BlockStats seen;
    const Nvfp4Block block =
        QuantizeNvfp4Block(&values[b * kNvfp4Block], GlobalScale(global_scale), &seen);
    stats += seen;
    std::memcpy(&codes[b * sizeof(block.codes)], block.codes, sizeof(block.codes));
    scales[b] = static_cast<char>(block.scale);
  }
  const std::string name = fmt::format("{}.weight_scale_2", kExpert);
  TensorNamed(tensors, name) = MakeScalar(name, global_scale);
  WriteModel(dir.path() / "nvfp4", TinyConfig(), tensors);
  tensors = Model(StoredFormat::kF32);
  TensorNamed(tensors, fmt::format("{}.weight", kExpert)) =
      MakeTensor(fmt::format("{}.weight", kExpert), DType::kF32, {32, 64}, values);
  WriteModel(dir.path() / "source", TinyConfig(), tensors);
  return stats.clipped;
}

std::string FindingsOf(const TempDir& dir, bool with_reference) {
  VerifyOptions options;
  if (with_reference) options.reference = dir.path() / "source";
  return FindingsText(Verify(dir.path() / "nvfp4", options)->findings, 99);
}

TEST(Verify, SaysClippedWhereAValueWasAndNowhereElse) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(size_t{32} * 64);
  for (float& value : values) value = uniform(random);
  for (const float shrink : {1.0f, 0.9f, 0.5f}) {
    const TempDir dir;
    const int64_t clipped = WriteQuantized(dir, values, shrink / 2688);
    EXPECT_EQ(clipped > 0, shrink < 1);
    const std::string with = FindingsOf(dir, true);
    EXPECT_EQ(with.find("clipped") != std::string::npos, clipped > 0) << with;
    EXPECT_NE(with.find(clipped > 0 ? fmt::format("{} blocks of the reference", clipped) : ""),
              std::string::npos)
        << with;
    // Without the source only what is beyond doubt is suspected.
    const std::string without = FindingsOf(dir, false);
    EXPECT_EQ(without.find("may be too small and have clipped") != std::string::npos, shrink < 0.9f)
        << without;
  }
  for (float& value : values) value = value < 0 ? -1.0f : 1.0f;  // all blocks are alike
  const TempDir dir;
  EXPECT_EQ(WriteQuantized(dir, values, 1.0f / 2688), 0);
  EXPECT_EQ(FindingsOf(dir, true).find("clipped"), std::string::npos);
}

TEST(Verify, AMatrixOfZerosIsNoSignOfMissingCalibration) {
  const TempDir dir;
  std::vector<TestTensor> tensors = Model(kNv);
  for (const char* part : {"w1", "w2", "w3"}) {
    const std::string module = fmt::format("layers.1.ffn.experts.2.{}", part);
    for (const char* tensor : {"weight", "weight_scale"}) {
      std::string& bytes = TensorNamed(tensors, fmt::format("{}.{}", module, tensor)).bytes;
      bytes.assign(bytes.size(), '\0');
    }
    for (const char* scalar : {"weight_scale_2", "input_scale"}) {
      const std::string name = fmt::format("{}.{}", module, scalar);
      TensorNamed(tensors, name) = MakeScalar(name, 1);
    }
  }
  WriteModel(dir.path(), TinyConfig(), tensors);
  const Findings findings = Check(dir).findings;
  EXPECT_FALSE(HasWarnings(findings)) << FindingsText(findings, 99);
}

TEST(Verify, RefusesRouterTablesOutOfRangeOrWithRepeats) {
  for (const int64_t id : {int64_t{4}, int64_t{-1}, int64_t{1} << 40, int64_t{3}}) {
    const TempDir dir;
    std::vector<TestTensor> tensors = Model(kMx);
    TestTensor& table = TensorNamed(tensors, "layers.0.ffn.gate.tid2eid");
    std::memcpy(&table.bytes[8 * (2 * 2)], &id, 8);  // row 2 held experts 2 and 3
    WriteModel(dir.path(), TinyConfig(), tensors);
    Finds(Check(dir).findings, Severity::kError, "tid2eid",
          id == 3 ? "row 2 names expert 3 twice" : fmt::format("row 2 names expert {}", id));
  }
}

TEST(Verify, ComparesAnyFormatWithAnyOtherByMeaning) {
  const TempDir dir;
  WriteModel(dir.path() / "a", TinyConfig(), Model(kMx));
  WriteModel(dir.path() / "b", TinyConfig(),
             TinyModel(TinyConfig(), {NamingStyle::kHuggingFace, kCt, StoredFormat::kBf16}));
  const auto verification = Verify(dir.path() / "a", {dir.path() / "b", 2});
  ASSERT_TRUE(verification) << verification.error().message;
  EXPECT_TRUE(verification->ok());
  EXPECT_GT(verification->comparisons.size(), 100u);
  for (const Comparison& comparison : verification->comparisons) {
    EXPECT_TRUE(comparison.error.exact()) << comparison.tensor;
  }
}

TEST(Verify, ReportsTheWorstElementAgainstTheReference) {
  const TempDir dir;
  WriteModel(dir.path() / "a", TinyConfig(), Model(StoredFormat::kF32));
  std::vector<TestTensor> tensors = Model(StoredFormat::kF32);
  TestTensor& weight = TensorNamed(tensors, fmt::format("{}.weight", kExpert));
  const float other = 1000;
  std::memcpy(&weight.bytes[4 * (64 * 5 + 7)], &other, 4);
  WriteModel(dir.path() / "b", TinyConfig(), tensors);
  const auto verification = Verify(dir.path() / "b", {dir.path() / "a", 2});
  EXPECT_FALSE(verification->ok());
  Finds(verification->findings, Severity::kError, kExpert, "other numbers");
  const Json json = VerificationJson(*verification);
  for (const Json& comparison : json["comparisons"]) {
    const bool changed = comparison["tensor"] == weight.name;
    EXPECT_EQ(comparison["exact"], !changed) << comparison.dump();
    if (!changed) continue;
    EXPECT_EQ(comparison["worst"]["row"], 5);
    EXPECT_EQ(comparison["worst"]["column"], 7);
    EXPECT_EQ(comparison["worst"]["value"], 1000);
  }
}

TEST(Verify, RefusesABrokenReference) {
  const TempDir dir;
  WriteModel(dir.path(), TinyConfig(), Model(kMx));
  EXPECT_FALSE(Verify(dir.path(), {dir.path() / "absent", 1}));
}

// CNV-05.
TEST(QuantizationConfig, PatternsCoverWhatTheySay) {
  EXPECT_TRUE(ModulePattern("lm_head*").Covers("lm_head"));
  EXPECT_TRUE(ModulePattern("*.mlp.gate").Covers("model.layers.3.mlp.gate"));
  EXPECT_FALSE(ModulePattern("*.mlp.gate").Covers("model.layers.3.mlp.gate_proj"));
  EXPECT_TRUE(ModulePattern("re:.*attn.*").Covers("layers.3.attn.wq_a"));
  EXPECT_FALSE(ModulePattern("re:attn").Covers("layers.3.attn.wq_a"));
  EXPECT_TRUE(ModulePattern("model.layers.1").Covers("model.layers.1.mlp.gate"));
  EXPECT_FALSE(ModulePattern("model.layers.1").Covers("model.layers.10.mlp.gate"));
  EXPECT_TRUE(ModulePattern("mtp.*").Covers("mtp.0.attn.wkv"));
  EXPECT_FALSE(ModulePattern("re:(").Covers("("));
  EXPECT_FALSE(ModulePattern("re:" + std::string(100000, '(')).Covers("x"));
  EXPECT_FALSE(ModulePattern("re:(a*)*b").Covers(std::string(200, 'a')));
  EXPECT_FALSE(ModulePattern(std::string(200, '*') + "b").Covers(std::string(2000, 'a')));
}

Findings QuantizationFindings(const char* section, const char* side) {
  const TempDir dir;
  Json config = TinyConfig();
  if (section != nullptr) config["quantization_config"] = Json::parse(section);
  if (side != nullptr) test::WriteBytes(dir.path() / "hf_quant_config.json", side);
  WriteModel(dir.path(), config, Model(kNv));
  return Check(dir).findings;
}

// Layer 1 and a part of one expert of layer 2 are in a shard that cannot be read.
TEST(Verify, AShardThatCannotBeReadIsOneFindingNotOneForEachTensor) {
  for (const bool indexed : {true, false}) {
    for (const bool missing : {true, false}) {
      if (missing && !indexed) continue;  // nobody would know of it
      const TempDir dir;
      std::vector<TestTensor> readable;
      std::vector<std::pair<std::string, std::string>> index;
      for (const TestTensor& tensor : Model(kNv)) {
        const bool lost = tensor.name.starts_with("layers.1.") ||
                          tensor.name == "layers.2.ffn.experts.0.w1.weight_scale";
        index.emplace_back(tensor.name, lost ? "b.safetensors" : "a.safetensors");
        if (!lost) readable.push_back(tensor);
      }
      test::WriteBytes(dir.path() / "config.json", TinyConfig().dump());
      test::WriteSafetensors(dir.path() / "a.safetensors", readable);
      if (!missing) test::WriteBytes(dir.path() / "b.safetensors", "torn");
      if (indexed) test::WriteIndex(dir.path(), index);
      const auto inspection = Inspect(dir.path(), {});
      ASSERT_TRUE(inspection);
      for (const Findings& findings : {Check(dir).findings, inspection->findings}) {
        Finds(findings, Severity::kError, "b.safetensors", "");
        const auto errors = std::count_if(findings.begin(), findings.end(), [](const Finding& f) {
          return f.severity == Severity::kError;
        });
        // Without an index nobody knows that the scale is in the other file.
        EXPECT_EQ(errors, indexed ? 1 : 2) << FindingsText(findings, 99);
      }
    }
  }
}

TEST(QuantizationConfig, TheSideFileAloneMayAnnounceNvfp4) {
  const Findings findings =
      QuantizationFindings(nullptr, R"({"quantization":{"quant_algo":"NVFP4","group_size":16}})");
  EXPECT_FALSE(HasWarnings(findings)) << FindingsText(findings, 99);
}

TEST(QuantizationConfig, TwoFilesThatDisagreeAreAnError) {
  const char* section = R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16,
                            "ignore":["head"]})";
  Finds(QuantizationFindings(section, R"({"quantization":{"quant_algo":"FP8"}})"), Severity::kError,
        "hf_quant_config.json", "says FP8, but config.json says NVFP4");
  Finds(QuantizationFindings(section, R"({"quantization":{"quant_algo":"NVFP4","group_size":32}})"),
        Severity::kError, "hf_quant_config.json", "group_size 32");
  Finds(QuantizationFindings(
            section, R"({"quantization":{"quant_algo":"NVFP4","exclude_modules":["embed"]}})"),
        Severity::kError, "hf_quant_config.json", "exclude_modules differ");
  Finds(QuantizationFindings(section, "{}"), Severity::kError, "hf_quant_config.json",
        "quantization is missing");
}

TEST(QuantizationConfig, OneFileThatContradictsItselfIsAnError) {
  Finds(QuantizationFindings(nullptr,
                             R"({"quantization":{"quant_algo":"FP8","moe_quant_algo":"NVFP4"}})"),
        Severity::kError, "hf_quant_config.json", "says quant_algo FP8, but NVFP4 for the experts");
  Finds(QuantizationFindings(R"({"quant_algo":"FP8","moe_quant_algo":"NVFP4"})", nullptr),
        Severity::kError, "config.json", "says quant_algo FP8");
  for (const char* all : {"MIXED_PRECISION", "NVFP4"}) {
    const std::string side =
        fmt::format(R"({{"quantization":{{"quant_algo":"{}","moe_quant_algo":"NVFP4"}}}})", all);
    EXPECT_FALSE(HasWarnings(QuantizationFindings(nullptr, side.c_str())));
  }
}

TEST(QuantizationConfig, UnusedAndContradictedExclusionsAreWarnings) {  // R109
  const Findings findings = QuantizationFindings(
      R"({"quant_algo":"NVFP4","ignore":["*.nothing","re:(","layers.1.ffn.experts.*","head"]})",
      nullptr);
  Finds(findings, Severity::kWarning, "*.nothing", "matches no module");
  Finds(findings, Severity::kWarning, "re:(", "not a regular expression");
  Finds(findings, Severity::kWarning, "layers.1.ffn.experts.*",
        "excludes 12 modules from quantization that are stored as NVFP4");
}

TEST(QuantizationConfig, ExclusionsAreComparedWithEveryExpert) {
  for (const auto& [pattern, modules] : std::map<std::string, int>{
           {"re:.*experts\\.2\\..*", 12},
           {"layers.1.ffn.experts.3", 3},
           {"layers.2.ffn.experts.3.w2", 1},
           {"*.experts.1.w?", 12},
           {"model.layers.1.mlp.experts.2.gate_proj", 1}}) {  // the name in the other tables
    const Json section = {{"quant_algo", "NVFP4"}, {"ignore", {pattern}}};
    const Findings findings = QuantizationFindings(section.dump().c_str(), nullptr);
    Finds(findings, Severity::kWarning, "config.json: " + pattern,
          fmt::format("excludes {} modules", modules));
    EXPECT_EQ(std::count_if(findings.begin(), findings.end(),
                            [](const Finding& f) { return f.severity != Severity::kNote; }),
              1)
        << FindingsText(findings, 99);
  }
}

// Expert 2 of layer 1 is BF16 among NVFP4 ones.
std::vector<TestTensor> WithAPlainExpert() {
  std::vector<TestTensor> tensors = Model(kNv);
  const auto of_expert = [](const TestTensor& tensor) {
    return tensor.name.starts_with("layers.1.ffn.experts.2.");
  };
  std::erase_if(tensors, of_expert);
  for (const TestTensor& tensor : Model(StoredFormat::kBf16)) {
    if (of_expert(tensor)) tensors.push_back(tensor);
  }
  return tensors;
}

TEST(QuantizationConfig, AnExpertIn16BitsAmongQuantizedOnesIsSoundIfTheListNamesIt) {
  const TempDir dir;
  Json config = TinyConfig();
  config["quantization_config"] = {
      {"quant_algo", "NVFP4"},
      {"ignore",
       {"layers.1.ffn.experts.2.w1", "layers.1.ffn.experts.2.w2", "layers.1.ffn.experts.2.w3"}}};
  WriteModel(dir.path(), config, WithAPlainExpert());
  EXPECT_FALSE(HasWarnings(Check(dir).findings)) << FindingsText(Check(dir).findings, 99);
  config["quantization_config"]["ignore"].erase(1);
  WriteModel(dir.path(), config, WithAPlainExpert());
  Finds(Check(dir).findings, Severity::kWarning, "config.json",
        "names 1 matrices of experts, the first layers.1.ffn.experts.2.w2");
}

TEST(QuantizationConfig, ClaimsThatNothingStoredBearsOutAreWarnings) {
  for (const auto& [section, format] : std::map<std::string, std::string>{
           {R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16})", "NVFP4"},
           {R"({"quant_method":"modelopt","quant_algo":"NVFP4_AWQ"})", "NVFP4"},
           {R"({"quant_method":"modelopt_fp4","quant_algo":"W4A16_NVFP4"})", "NVFP4"},
           {R"({"quant_method":"modelopt","quant_algo":"FP8"})", "FP8"},
           {R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",)"
            R"("quantized_layers":{"a":{"quant_algo":"FP8"}}})",
            "FP8"},
           {R"({"quant_method":"fp8","weight_block_size":[128,128]})", "FP8"},
           {R"({"quant_method":"mxfp4","modules_to_not_convert":["head"]})", "MXFP4"},
           {R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"})", "NVFP4"},
           {R"({"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":)"
            R"({"a":{"format":"mxfp4-pack-quantized"}}})",
            "MXFP4"},
           {R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":)"
            R"({"a":{"weights":{"num_bits":8,"type":"float"}}}})",
            "FP8"},
           {R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":)"
            R"({"a":{"weights":{"num_bits":4,"type":"int"}}}})",
            "pack-quantized"},
           {R"({"quant_method":"awq","bits":4,"group_size":128})", "awq"},
           {R"({"quant_method":"gptq","bits":4,"desc_act":false})", "gptq"},
           {R"({"quant_method":"bitsandbytes","load_in_4bit":true})", "bitsandbytes"},
           {R"({"quant_method":"quark","export":{}})", "quark"}}) {
    const TempDir dir;
    Json config = TinyConfig();
    config["quantization_config"] = Json::parse(section);
    WriteModel(dir.path(), config,
               TinyModel(TinyConfig(),
                         {NamingStyle::kOfficial, StoredFormat::kBf16, StoredFormat::kBf16, true}));
    Finds(Check(dir).findings, Severity::kWarning, "config.json",
          fmt::format("announces {0}, but no weight is stored as {0}", format));
  }
}

TEST(QuantizationConfig, WhatAnOfficialConfigSaysOfItsExpertsIsAClaimToo) {
  Json config = TinyConfig();
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  for (const auto& [dtype, stored, words] :
       {std::tuple{"fp4", kMx, ""}, std::tuple{"fp8", StoredFormat::kFp8Block, ""},
        std::tuple{"fp8", kMx, "expert_dtype is fp8, but experts are stored as mxfp4-deepseek"},
        std::tuple{"fp4", StoredFormat::kBf16, "expert_dtype is fp4, but experts are stored"}}) {
    const TempDir dir;
    config["expert_dtype"] = dtype;
    WriteModel(dir.path(), config, Model(stored));
    const Findings findings = Check(dir).findings;
    if (*words == '\0') {
      EXPECT_TRUE(findings.empty()) << FindingsText(findings, 99);
    } else {
      Finds(findings, Severity::kWarning, "config.json", words);
    }
  }
}

TEST(QuantizationConfig, AnAnnouncedKvCacheIsNamedWithItsScalesAndWithout) {
  for (const bool stored : {true, false}) {
    const TempDir dir;
    Json config = TinyConfig();
    config["quantization_config"] = {{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}};
    std::vector<TestTensor> tensors = Model(kNv);
    if (stored) tensors.push_back(MakeScalar("layers.0.attn.k_scale", 1));
    WriteModel(dir.path(), config, tensors);
    Finds(Check(dir).findings, Severity::kWarning, "config.json",
          stored ? "and 1 scales for it are stored, such as layers.0.attn.k_scale"
                 : "but no scale for one is stored");
  }
}

// "yes", "no" or "unknown" of transformers, vllm and sglang.
std::string Verdicts(const Json& config, const std::vector<TestTensor>& tensors) {
  const TempDir dir;
  WriteModel(dir.path(), config, tensors);
  VerifyOptions options;
  options.tools = *ParseTools("transformers,vllm,sglang");
  const Verification verification = Check(dir, options);
  std::string verdicts;
  for (const ToolVerdict& tool : verification.tools) {
    verdicts += fmt::format("{}{}", verdicts.empty() ? "" : " ", LoadsName(tool.loads));
    EXPECT_FALSE(tool.reason.empty());
    EXPECT_FALSE(tool.version.empty());
  }
  EXPECT_EQ(verification.loads_everywhere(),
            verdicts.find("no") != 0 && verdicts.find(" no") == std::string::npos)
      << verdicts;
  return verdicts;
}

TEST(ToolSupport, TellsWhoLoadsWhichModel) {
  const auto config = [](const char* section, const char* expert_dtype) {
    Json json = TinyConfig();
    if (*section != '\0') json["quantization_config"] = Json::parse(section);
    if (*expert_dtype != '\0') json["expert_dtype"] = expert_dtype;
    return json;
  };
  const auto model = [](NamingStyle style, StoredFormat experts, StoredFormat dense) {
    return TinyModel(TinyConfig(), {style, experts, dense, true});
  };
  constexpr StoredFormat kFp8 = StoredFormat::kFp8Block, kBf16 = StoredFormat::kBf16;
  constexpr NamingStyle kOfficial = NamingStyle::kOfficial, kHf = NamingStyle::kHuggingFace;
  const char* fp8 = R"({"quant_method":"fp8","weight_block_size":[128,128]})";
  const char* hybrid = R"({"quant_method":"fp8","quant_algo":"MIXED_PRECISION",
                           "moe_quant_algo":"NVFP4","group_size":16})";
  const char* modelopt = R"({"quant_method":"modelopt","quant_algo":"NVFP4"})";
  const char* ct = R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"})";

  EXPECT_EQ(Verdicts(config(fp8, "fp4"), model(kOfficial, kMx, kFp8)), "yes yes yes");
  EXPECT_EQ(Verdicts(config(fp8, ""), model(kOfficial, kMx, kFp8)), "no yes yes");
  EXPECT_EQ(Verdicts(config(fp8, "fp8"), model(kOfficial, kMx, kFp8)), "no no yes");
  EXPECT_EQ(Verdicts(config(fp8, "fp8"), model(kOfficial, kFp8, kFp8)), "yes yes yes");
  EXPECT_EQ(Verdicts(config(fp8, ""), model(kOfficial, kFp8, kFp8)), "yes no yes");
  EXPECT_EQ(Verdicts(config(hybrid, "fp4"), model(kOfficial, kNv, kFp8)), "no yes yes");
  EXPECT_EQ(Verdicts(config(hybrid, "fp4"), model(kOfficial, kNv, kBf16)), "no no no");
  EXPECT_EQ(Verdicts(config(modelopt, ""), model(kOfficial, kNv, kBf16)), "no unknown unknown");
  EXPECT_EQ(Verdicts(config(ct, ""), model(kOfficial, kCt, kBf16)), "no unknown unknown");
  EXPECT_EQ(Verdicts(config("", ""), model(kOfficial, kBf16, kBf16)), "yes unknown unknown");
  EXPECT_EQ(Verdicts(config("", ""), model(kHf, kBf16, kBf16)), "no no no");
  EXPECT_EQ(Verdicts(config("", ""), model(NamingStyle::kLanguageModelOuter, kBf16, kBf16)),
            "no no no");
}

TEST(ToolSupport, WhatIsBrokenNobodyLoadsAndARemedyIsNamed) {
  std::vector<TestTensor> tensors = Model(kMx);
  test::Remove(tensors, "norm.weight");
  const TempDir dir;
  WriteModel(dir.path(), TinyConfig(), tensors);
  VerifyOptions options;
  options.tools = *ParseTools("all");
  for (const ToolVerdict& tool : Check(dir, options).tools) {
    EXPECT_EQ(tool.loads, Loads::kNo) << tool.tool;
    EXPECT_NE(tool.reason.find("norm.weight"), std::string::npos) << tool.reason;
  }
  Json config = TinyConfig();
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  WriteModel(dir.path(), config, Model(kNv));
  options.tools = {"transformers", "halfbyte"};
  const Verification verification = Check(dir, options);
  EXPECT_EQ(verification.tools[0].remedy,
            fmt::format("halfbyte convert {} OUT --format bf16", dir.path().string()));
  EXPECT_EQ(verification.tools[1].loads, Loads::kYes);
  EXPECT_NE(VerificationText(verification).find("try: halfbyte convert"), std::string::npos);
  EXPECT_EQ(VerificationJson(verification)["tools"][0]["loads"], "no");
  EXPECT_NE(ParseTools("vllm,vlm").error().message.find("did you mean vllm?"), std::string::npos);
  EXPECT_FALSE(ParseTools("vllm,"));
}

TEST(ToolSupport, EveryRowIsOfAKnownToolAndReached) {
  std::set<std::string_view> known;
  for (const ToolVersion& tool : KnownTools()) {
    EXPECT_TRUE(known.insert(tool.tool).second);
    EXPECT_FALSE(tool.source.empty());
  }
  const auto rows = ToolRows();
  const auto covers = [](std::string_view a, std::string_view b) { return a.empty() || a == b; };
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(known.contains(rows[i].tool)) << rows[i].tool;
    for (size_t j = 0; j < i; ++j) {
      const ToolRow &a = rows[j], &b = rows[i];
      EXPECT_FALSE(a.tool == b.tool && covers(a.names, b.names) && covers(a.layout, b.layout) &&
                   covers(a.experts, b.experts) && covers(a.method, b.method))
          << "row " << i << " of " << b.tool << " is never reached";
    }
  }
}

TEST(Inspect, GroupsModulesAndTotalsTheirBytes) {
  const TempDir dir;
  std::vector<TestTensor> tensors = Model(kNv);
  tensors.push_back(MakeScalar("layers.0.attn.k_scale", 1));
  WriteModel(dir.path(), TinyConfig(), tensors);
  const auto inspection = Inspect(dir.path(), {true});
  ASSERT_TRUE(inspection) << inspection.error().message;
  EXPECT_EQ(inspection->tensors, std::ssize(tensors));
  int64_t bytes = 0, in_tensors = 0;
  for (const Total& total : inspection->by_format) bytes += total.bytes;
  for (const Total& total : inspection->by_family) in_tensors += total.tensors;
  EXPECT_EQ(bytes, inspection->bytes);
  EXPECT_EQ(in_tensors, inspection->tensors);
  for (const ModuleGroup& group : inspection->groups) {
    if (!IsRoutedExpert(group.key.module)) continue;
    EXPECT_EQ(group.format, "nvfp4-modelopt");
    EXPECT_EQ(group.modules, 4);
    EXPECT_EQ(group.tensors, 16);
    EXPECT_EQ(group.global_scales.low, 0x1p-6f);
    EXPECT_EQ(group.block_scales.high, 256);
  }
  Finds(inspection->findings, Severity::kWarning, "layers.0.attn.k_scale", "unknown");
  const std::string text = InspectionText(*inspection);
  EXPECT_NE(text.find("experts.w1 (gate)"), std::string::npos);
  EXPECT_EQ(InspectionJson(*inspection)["tensors"], std::ssize(tensors));
}

}  // namespace
}  // namespace halfbyte
