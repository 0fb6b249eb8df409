#include "checkpoint/model_checkpoint.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_test_files.h"

namespace halfbyte {
namespace {

using test::EncodeMatrix;
using test::ExactMatrix;
using test::kCt;
using test::kMx;
using test::kNv;
using test::MakeScalar;
using test::MakeTensor;
using test::Remove;
using test::TempDir;
using test::TensorNamed;
using test::TestTensor;
using test::TinyConfig;
using test::TinyFormats;
using test::TinyModel;
using test::WriteModel;

std::vector<float> Dense(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.columns));
  for (int64_t r = 0; r < matrix.rows; ++r)
    DequantizeRow(matrix, r, &values[static_cast<size_t>(r * matrix.columns)]);
  return values;
}

// Opens a model whose tensors have been tampered with.
Result<ModelCheckpoint> OpenChanged(const TempDir& dir, const std::vector<TestTensor>& tensors,
                                    const Json& config = TinyConfig()) {
  WriteModel(dir.path(), config, tensors);
  return ModelCheckpoint::Open(dir.path());
}

void ExpectError(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
}

void Reshape(std::vector<TestTensor>& tensors, const std::string& name, DType dtype, Shape shape) {
  TestTensor& tensor = TensorNamed(tensors, name);
  tensor.dtype = dtype;
  tensor.bytes.assign(static_cast<size_t>(ElementCount(shape) * DTypeSize(dtype)), '\1');
  tensor.shape = std::move(shape);
}

constexpr StoredFormat kExpertFormats[] = {StoredFormat::kF32,        StoredFormat::kBf16,
                                           StoredFormat::kF16,        StoredFormat::kModelOptNvfp4,
                                           StoredFormat::kCtNvfp4,    StoredFormat::kDeepSeekMxfp4,
                                           StoredFormat::kCtMxfp4,    StoredFormat::kFp8Block,
                                           StoredFormat::kFp8Channel, StoredFormat::kFp8Tensor};

TEST(ModelCheckpoint, EveryFormatAndStyleGivesTheSameDenseMatrix) {  // R108
  for (int s = 0; s < kNamingStyles; ++s) {
    const auto style = static_cast<NamingStyle>(s);
    for (const StoredFormat format : kExpertFormats) {
      const TempDir dir;
      const auto model = OpenChanged(dir, TinyModel(TinyConfig(), {style, format, format, true}));
      ASSERT_TRUE(model) << model.error().message;
      EXPECT_EQ(model->style(), style);
      for (const ModuleKey& key :
           {ModuleKey::Layer(1, Module::kExpertGate, 3),
            ModuleKey::Layer(2, Module::kExpertDown, 0), ModuleKey::Layer(2, Module::kQB),
            ModuleKey::Layer(0, Module::kSharedUp), ModuleKey::Mtp(0, Module::kExpertUp, 1)}) {
        const auto weight = model->FindWeight(key);
        ASSERT_TRUE(weight) << weight.error().message;
        EXPECT_EQ(weight->format, format) << StoredFormatName(weight->format);
        const ExactMatrix exact(weight->matrix.rows, weight->matrix.columns, test::SeedOf(key));
        EXPECT_EQ(Dense(weight->matrix), exact.values) << Describe(key) << StoredFormatName(format);
        weight->DropPages();
        EXPECT_EQ(Dense(weight->matrix), exact.values);
      }
    }
  }
}

TEST(ModelCheckpoint, CodesOfTheTypeF4AreReadAsThoseInBytesAre) {
  for (const StoredFormat format : {kNv, kCt, kMx, StoredFormat::kCtMxfp4}) {
    std::vector<TestTensor> tensors =
        TinyModel(TinyConfig(), {NamingStyle::kOfficial, format, StoredFormat::kBf16, true});
    for (TestTensor& tensor : tensors) {
      const auto name = ParseTensorName(tensor.name);
      if (!IsRoutedExpert(name->key.module)) continue;
      if (name->part != Part::kWeight && name->part != Part::kWeightPacked) continue;
      tensor.dtype = DType::kF4;
      tensor.shape[1] *= 2;
    }
    const TempDir dir;
    const auto model = OpenChanged(dir, tensors);
    ASSERT_TRUE(model) << model.error().message;
    const ModuleKey key = ModuleKey::Layer(1, Module::kExpertGate, 3);
    const auto weight = model->FindWeight(key);
    ASSERT_TRUE(weight) << weight.error().message;
    const ExactMatrix exact(weight->matrix.rows, weight->matrix.columns, test::SeedOf(key));
    EXPECT_EQ(Dense(weight->matrix), exact.values) << StoredFormatName(format);
  }
}

TEST(ModelCheckpoint, UnusedTensorsOfAnyTypeAreWarnings) {
  std::vector<TestTensor> tensors = TinyModel(TinyConfig(), {});
  for (int i = 0; i <= static_cast<int>(DType::kUnknown); ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto bytes = static_cast<size_t>(dtype == DType::kUnknown ? 7 : DTypeBits(dtype));
    tensors.push_back(
        {fmt::format("buffer_{}", DTypeName(dtype)), dtype, {2, 4}, std::string(bytes, 'x')});
  }
  const TempDir dir;
  WriteModel(dir.path(), TinyConfig(), tensors);
  Findings findings;
  const auto model = ModelCheckpoint::OpenWithFindings(dir.path(), findings);
  ASSERT_TRUE(model);
  EXPECT_EQ(std::ssize(findings), static_cast<int>(DType::kUnknown) + 1);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.severity, Severity::kWarning) << finding.where << finding.message;
  }
}

TEST(ModelCheckpoint, InputScalesComeAsMultipliersFromBothConventions) {
  for (const StoredFormat format : {StoredFormat::kModelOptNvfp4, StoredFormat::kCtNvfp4}) {
    const TempDir dir;
    const auto model =
        OpenChanged(dir, TinyModel(TinyConfig(), {NamingStyle::kHuggingFace, format}));
    ASSERT_TRUE(model) << model.error().message;
    const auto weight = model->FindWeight(ModuleKey::Layer(0, Module::kExpertGate, 0));
    EXPECT_EQ(weight->matrix.global_scale, GlobalScale(0x1p-6f));
    EXPECT_EQ(weight->input_scale, GlobalScale(0x1p-8f));
  }
}

TEST(ModelCheckpoint, FusedExpertsAreCutIntoGateUpAndDown) {
  const TempDir dir;
  std::vector<TestTensor> tensors =
      TinyModel(TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kF32, StoredFormat::kBf16});
  std::vector<float> gate_up, down;
  for (int e = 0; e < 4; ++e) {
    for (const Module module : {Module::kExpertGate, Module::kExpertUp, Module::kExpertDown}) {
      const ModuleKey key = ModuleKey::Layer(1, module, e);
      Remove(tensors, *FormatTensorName(key, Part::kWeight, NamingStyle::kHuggingFace));
      const bool is_down = module == Module::kExpertDown;
      const ExactMatrix m(is_down ? 64 : 32, is_down ? 32 : 64, test::SeedOf(key));
      std::vector<float>& all = is_down ? down : gate_up;
      all.insert(all.end(), m.values.begin(), m.values.end());
    }
  }
  tensors.push_back(
      MakeTensor("model.layers.1.mlp.experts.gate_up_proj", DType::kF32, {4, 64, 64}, gate_up));
  tensors.push_back(
      MakeTensor("model.layers.1.mlp.experts.down_proj", DType::kF32, {4, 64, 32}, down));
  const auto model = OpenChanged(dir, tensors);
  ASSERT_TRUE(model) << model.error().message;
  for (int e = 0; e < 4; ++e) {
    for (const Module module : {Module::kExpertGate, Module::kExpertUp, Module::kExpertDown}) {
      const ModuleKey key = ModuleKey::Layer(1, module, e);
      const auto weight = model->FindWeight(key);
      ASSERT_TRUE(weight) << weight.error().message;
      const ExactMatrix m(weight->matrix.rows, weight->matrix.columns, test::SeedOf(key));
      EXPECT_EQ(Dense(weight->matrix), m.values) << Describe(key);
      weight->DropPages();
    }
  }

  std::vector<TestTensor> fewer = tensors;
  Reshape(fewer, "model.layers.1.mlp.experts.down_proj", DType::kF32, {3, 64, 32});
  const auto refused = OpenChanged(dir, fewer);
  ASSERT_FALSE(refused);
  ExpectError(refused.error().message, {"experts.down_proj", "[3, 64, 32]", "[4, 64, 32]"});

  for (TestTensor& tensor : EncodeMatrix("model.layers.1.mlp.experts.0.up_proj",
                                         ExactMatrix(32, 64, 1), StoredFormat::kBf16)) {
    tensors.push_back(tensor);
  }
  const auto twice = OpenChanged(dir, tensors);
  ASSERT_FALSE(twice);
  ExpectError(twice.error().message, {"experts.0.up_proj", "gate_up_proj holds this expert too"});
}

TEST(ModelCheckpoint, ARowOfHalfAndSixIsByte71) {  // R103
  const TempDir dir;
  std::vector<TestTensor> tensors = TinyModel(TinyConfig(), {});
  for (const char* scale : {"layers.0.ffn.experts.0.w1.scale"}) {
    TensorNamed(tensors, scale).bytes[0] = 127;
  }
  TensorNamed(tensors, "layers.0.ffn.experts.0.w1.weight").bytes[0] = 0x71;
  const auto model = OpenChanged(dir, tensors);
  const auto weight = model->FindWeight(ModuleKey::Layer(0, Module::kExpertGate, 0));
  const std::vector<float> dense = Dense(weight->matrix);
  EXPECT_EQ(dense[0], 0.5f);
  EXPECT_EQ(dense[1], 6.0f);
}

TEST(ModelCheckpoint, PlainTensorsComeAsStored) {
  const TempDir dir;
  const auto model = OpenChanged(dir, TinyModel(TinyConfig(), {}));
  ASSERT_TRUE(model) << model.error().message;
  const auto table = model->FindTensor(ModuleKey::Layer(0, Module::kRouterTable));
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->View().Load<int64_t>(3), 2);
  EXPECT_TRUE(model->FindTensor(ModuleKey::Global(Module::kNorm)));
  EXPECT_FALSE(model->FindTensor(ModuleKey::Layer(0, Module::kRouterBias)));
  const auto quantized = model->FindTensor(ModuleKey::Layer(0, Module::kQA));
  ASSERT_FALSE(quantized);
  ExpectError(quantized.error().message, {"layers.0.attn.wq_a.scale"});
  EXPECT_FALSE(model->FindWeight(ModuleKey::Layer(0, Module::kExpertGate, 4)));
  EXPECT_FALSE(model->FindWeight(ModuleKey::Layer(7, Module::kQA)));
}

// One fault in an otherwise sound model: Open must refuse it and name the tensor.
struct Fault {
  const char* name;
  StoredFormat experts;
  void (*break_it)(std::vector<TestTensor>& tensors);
  std::vector<const char*> words;
};

constexpr char kW1[] = "layers.1.ffn.experts.2.w1.weight";

void Rename(std::vector<TestTensor>& tensors, const std::string& from, const std::string& to) {
  TensorNamed(tensors, from).name = to;
}

class ModelCheckpointRefuses : public testing::TestWithParam<Fault> {};

TEST_P(ModelCheckpointRefuses, ByName) {  // R104
  const TempDir dir;
  std::vector<TestTensor> tensors =
      TinyModel(TinyConfig(), {NamingStyle::kOfficial, GetParam().experts});
  GetParam().break_it(tensors);
  const auto model = OpenChanged(dir, tensors);
  ASSERT_FALSE(model) << "was opened";
  for (const char* word : GetParam().words) {
    EXPECT_NE(model.error().message.find(word), std::string::npos) << model.error().message;
  }
}

const Fault kFaults[] = {

    Fault{"MissingExpert",
          kMx,
          [](auto& t) {
            Remove(t, kW1);
            Remove(t, "layers.1.ffn.experts.2.w1.scale");
          },
          {kW1, "missing"}},
    Fault{"MissingNorm", kMx, [](auto& t) { Remove(t, "norm.weight"); }, {"norm.weight"}},
    Fault{"MissingTable",
          kMx,
          [](auto& t) { Remove(t, "layers.0.ffn.gate.tid2eid"); },
          {"layers.0.ffn.gate.tid2eid", "missing"}},
    Fault{"MissingPartOfDraft",
          kMx,
          [](auto& t) { Remove(t, "mtp.0.enorm.weight"); },
          {"mtp.0.enorm.weight"}},
    Fault{"MissingMxfp4Scale",
          kMx,
          [](auto& t) { Remove(t, "layers.1.ffn.experts.2.w1.scale"); },
          {kW1, "neither scale nor"}},
    Fault{"ScaleWithoutWeight",
          kMx,
          [](auto& t) { Remove(t, kW1); },
          {"layers.1.ffn.experts.2.w1.scale", "is missing"}},
    Fault{"MissingFp8Scale",
          kMx,
          [](auto& t) { Remove(t, "layers.2.attn.wkv.scale"); },
          {"layers.2.attn.wkv.weight", "no scale"}},
    Fault{"MissingScale2",
          kNv,
          [](auto& t) { Remove(t, "layers.1.ffn.experts.2.w1.weight_scale_2"); },
          {kW1, "weight_scale_2 is missing"}},
    Fault{"MissingBlockScales",
          kNv,
          [](auto& t) { Remove(t, "layers.1.ffn.experts.2.w1.weight_scale"); },
          {kW1, "weight_scale is missing"}},
    Fault{"MissingInputScaleOfOneExpert",
          kNv,
          [](auto& t) { Remove(t, "layers.1.ffn.experts.2.w2.input_scale"); },
          {"layers.1.ffn.experts.2.w2.weight", "input scale is missing"}},
    Fault{"MissingGlobalScaleOfPacked",
          kCt,
          [](auto& t) { Remove(t, "layers.1.ffn.experts.2.w1.weight_global_scale"); },
          {"layers.1.ffn.experts.2.w1.weight_packed", "weight_global_scale is missing"}},
    Fault{"BothConventions",
          kNv,
          [](auto& t) {
            t.push_back(MakeScalar("layers.1.ffn.experts.2.w1.weight_global_scale", 64));
          },
          {kW1, "does not go with a weight_global_scale"}},
    Fault{"BothScales",
          kNv,
          [](auto& t) {
            t.push_back({"layers.1.ffn.experts.2.w1.scale",
                         DType::kF8E8m0,
                         {32, 2},
                         std::string(64, '\177')});
          },
          {kW1, "does not go with"}},
    Fault{"ScalesOf32ForNvfp4",
          kNv,
          [](auto& t) {
            Reshape(t, "layers.1.ffn.experts.2.w1.weight_scale", DType::kF8E4m3, {32, 2});
          },
          {"w1.weight_scale", "[32, 2]", "[32, 4]"}},
    Fault{"ScalesPerRowForNvfp4",
          kNv,
          [](auto& t) {
            Reshape(t, "layers.1.ffn.experts.2.w1.weight_scale", DType::kF8E4m3, {32, 1});
          },
          {"w1.weight_scale", "[32, 1]"}},
    Fault{"ScalesAsE8m0ForNvfp4",
          kNv,
          [](auto& t) {
            Reshape(t, "layers.1.ffn.experts.2.w1.weight_scale", DType::kF8E8m0, {32, 4});
          },
          {"w1.weight_scale", "F8_E8M0", "F8_E4M3"}},
    Fault{"ScalesAsF32ForMxfp4",
          kMx,
          [](auto& t) {
            Reshape(t, "layers.1.ffn.experts.2.w1.scale", DType::kF32, {32, 2});
          },
          {"w1.scale", "F32"}},
    Fault{"UnpackedCodes",
          kMx,
          [](auto& t) {
            Reshape(t, kW1, DType::kI8, {32, 64});
          },
          {"layers.1.ffn.experts.2.w1", "[32, 2]"}},
    Fault{"TransposedWeight",
          kMx,
          [](auto& t) {
            Reshape(t, "layers.0.ffn.gate.weight", DType::kBf16, {64, 4});
          },
          {"layers.0.ffn.gate.weight", "[64, 4]", "[4, 64]"}},
    Fault{"WeightWithThreeDimensions",
          kMx,
          [](auto& t) {
            Reshape(t, "layers.0.ffn.gate.weight", DType::kBf16, {4, 64, 1});
          },
          {"layers.0.ffn.gate.weight", "matrix"}},
    Fault{"IntegerWeight",
          kMx,
          [](auto& t) {
            Reshape(t, "head.weight", DType::kI32, {48, 64});
          },
          {"head.weight", "I32"}},
    Fault{"IntegerNorm",
          kMx,
          [](auto& t) { Reshape(t, "norm.weight", DType::kU8, {64}); },
          {"norm.weight", "U8"}},
    Fault{"FloatTable",
          kMx,
          [](auto& t) {
            Reshape(t, "layers.0.ffn.gate.tid2eid", DType::kF32, {48, 2});
          },
          {"tid2eid", "I64 or I32"}},
    Fault{"NarrowNorm",
          kMx,
          [](auto& t) { Reshape(t, "norm.weight", DType::kBf16, {32}); },
          {"norm.weight", "[32]", "[64]"}},
    Fault{"WrongFp8ScaleShape",
          kMx,
          [](auto& t) {
            Reshape(t, "layers.0.attn.wq_b.scale", DType::kF8E8m0, {7, 3});
          },
          {"wq_b.scale", "[7, 3]", "no block size"}},
    Fault{"QuantizedNorm",
          kMx,
          [](auto& t) { t.push_back(MakeScalar("layers.0.attn_norm.weight_scale", 1)); },
          {"layers.0.attn_norm.weight_scale", "not stored quantized"}},
    Fault{"BiasOnAProjection",
          kMx,
          [](auto& t) {
            t.push_back(MakeTensor<float>("layers.0.attn.wq_a.bias", DType::kF32, {32},
                                          std::vector<float>(32)));
          },
          {"layers.0.attn.wq_a.weight", "bias"}},
    Fault{"ScaledBf16",
          kMx,
          [](auto& t) { t.push_back(MakeScalar("layers.0.ffn.gate.weight_scale", 1)); },
          {"layers.0.ffn.gate.weight", "weight_scale"}},
    Fault{"SurplusLayer",
          kMx,
          [](auto& t) { Rename(t, "layers.2.attn_norm.weight", "layers.3.attn_norm.weight"); },
          {"layers.3.attn_norm.weight", "surplus", "layers.2.attn_norm.weight"}},
    Fault{"SurplusExpert",
          kMx,
          [](auto& t) {
            for (TestTensor& tensor :
                 EncodeMatrix("layers.1.ffn.experts.4.w1", ExactMatrix(32, 64, 1), kMx)) {
              t.push_back(tensor);
            }
          },
          {"layers.1.ffn.experts.4.w1", "surplus"}},
    Fault{
        "CompressorInAWindowLayer",
        kMx,
        [](auto& t) {
          t.push_back(
              {"layers.0.attn.compressor.norm.weight", DType::kBf16, {32}, std::string(64, '\0')});
        },
        {"layers.0.attn.compressor.norm.weight", "surplus"}},
    Fault{"SameModuleUnderTwoNames",
          kMx,
          [](auto& t) {
            t.push_back({"model.norm.weight", DType::kBf16, {64}, std::string(128, '\0')});
          },
          {"model.norm.weight", "duplicate", "norm.weight"}}};

INSTANTIATE_TEST_SUITE_P(Faults, ModelCheckpointRefuses, testing::ValuesIn(kFaults),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(ModelCheckpoint, RefusesScalarScalesThatCannotBeUsed) {
  for (const char* part : {"weight_scale_2", "input_scale"}) {
    for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(), 1e-39f}) {
      const TempDir dir;
      std::vector<TestTensor> tensors = TinyModel(TinyConfig(), {NamingStyle::kOfficial, kNv});
      const std::string name = fmt::format("layers.1.ffn.experts.2.w2.{}", part);
      TensorNamed(tensors, name) = MakeScalar(name, value);
      const auto model = OpenChanged(dir, tensors);
      ASSERT_TRUE(model) << model.error().message;  // the header does not show it
      const auto weight = model->FindWeight(ModuleKey::Layer(1, Module::kExpertDown, 2));
      ASSERT_FALSE(weight) << value;
      ExpectError(weight.error().message, {name.c_str(), "positive"});
    }
  }
}

TEST(ModelCheckpoint, GlobalScalesMayBeZeroDimensionalOrOneElementOnly) {  // R107
  const TempDir dir;
  std::vector<TestTensor> tensors = TinyModel(TinyConfig(), {NamingStyle::kOfficial, kNv});
  const std::string name = "layers.1.ffn.experts.2.w2.weight_scale_2";
  TensorNamed(tensors, name) = MakeTensor<float>(name, DType::kF32, {1}, {0.5f});
  const std::string two = "layers.1.ffn.experts.1.w2.weight_scale_2";
  TensorNamed(tensors, two) = MakeTensor<float>(two, DType::kF32, {2}, {0.5f, 0.25f});
  const auto model = OpenChanged(dir, tensors);
  ASSERT_TRUE(model) << model.error().message;
  const auto weight = model->FindWeight(ModuleKey::Layer(1, Module::kExpertDown, 2));
  EXPECT_EQ(weight->matrix.global_scale.value(), 0.5f);
  const auto refused = model->FindWeight(ModuleKey::Layer(1, Module::kExpertDown, 1));
  ASSERT_FALSE(refused);
  ExpectError(refused.error().message, {two.c_str(), "[2]"});
}

TEST(ModelCheckpoint, DraftStagesMayBeAbsentAndUnknownTensorsAreReported) {  // R110
  const TempDir dir;
  std::vector<TestTensor> tensors =
      TinyModel(TinyConfig(), {NamingStyle::kOfficial, kMx, StoredFormat::kFp8Block, false});
  tensors.push_back(MakeScalar("layers.0.attn.k_scale", 1));
  WriteModel(dir.path(), TinyConfig(), tensors);
  Findings findings;
  const auto model = ModelCheckpoint::OpenWithFindings(dir.path(), findings);
  ASSERT_TRUE(model);
  CheckInventory(*model, findings);
  EXPECT_FALSE(HasErrors(findings));
  ASSERT_EQ(model->unknown().size(), 1u);
  EXPECT_EQ(findings.front().where, "layers.0.attn.k_scale");
  EXPECT_EQ(findings.back().where, "mtp.0");
}

TEST(ModelCheckpoint, OpensWithoutAConfigOnlyForTools) {
  const TempDir dir;
  WriteModel(dir.path(), TinyConfig(), TinyModel(TinyConfig(), {}));
  std::filesystem::remove(dir.path() / "config.json");
  EXPECT_FALSE(ModelCheckpoint::Open(dir.path()));
  Findings findings;
  const auto model = ModelCheckpoint::OpenWithFindings(dir.path(), findings);
  ASSERT_TRUE(model);
  EXPECT_FALSE(model->has_config());
  EXPECT_TRUE(model->FindWeight(ModuleKey::Layer(0, Module::kQA)));
}

// Names of other models and tools, and what the one finding about them says.
struct ForeignCase {
  const char* from;
  const char* to;
  const char* whose;
};

TEST(ModelCheckpoint, ForeignNamesAreOneFindingThatSaysWhoseTheyAre) {
  for (const auto& [from, to, whose] :
       {ForeignCase{"model.layers.", "blk.", "GGUF"},
        ForeignCase{"model.", "_orig_mod.model.", "torch.compile"},
        ForeignCase{"model.layers.", "module.model.layers.", "DataParallel"},
        ForeignCase{"model.", "base_model.model.model.", "PEFT"},
        ForeignCase{"model.layers.", "decoder.layers.", "Megatron-Core"},
        ForeignCase{".mlp.", ".block_sparse_moe.", "MiniMax"},
        ForeignCase{"self_attn.q_a_proj", "self_attn.k_proj", "Llama"},
        ForeignCase{"model.layers.", "blocks.", "in no table"}}) {
    const TempDir dir;
    std::vector<TestTensor> tensors = TinyModel(
        TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kBf16, StoredFormat::kBf16, false});
    for (TestTensor& tensor : tensors) {
      const size_t found = tensor.name.find(from);
      if (found != std::string::npos) tensor.name.replace(found, std::strlen(from), to);
      // A name that keeps its usual form would not be a foreign one.
      const bool kept = found == std::string::npos && tensor.name.starts_with("model.layers.");
      if (kept) tensor.name.insert(0, "x.");
    }
    const auto model = OpenChanged(dir, tensors);
    ASSERT_FALSE(model);
    EXPECT_NE(model.error().message.find(": names: "), std::string::npos) << model.error().message;
    EXPECT_NE(model.error().message.find(whose), std::string::npos) << model.error().message;
    EXPECT_EQ(model.error().message.find("missing"), std::string::npos) << model.error().message;
  }
}

TEST(ModelCheckpoint, ExpertsUnderForeignNamesAreOneFindingBeforeAnyOther) {
  const TempDir dir;
  std::vector<TestTensor> tensors = TinyModel(
      TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kBf16, StoredFormat::kBf16, false});
  for (TestTensor& tensor : tensors) {
    const size_t found = tensor.name.find(".mlp.experts.0.gate_proj");
    if (found != std::string::npos) tensor.name.replace(found, 12, ".mlp.switch_mlp.");
  }
  const auto model = OpenChanged(dir, tensors);
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("look like MLX"), std::string::npos)
      << model.error().message;
  EXPECT_NE(model.error().message.find("3 modules are missing"), std::string::npos)
      << model.error().message;
}

TEST(ModelCheckpoint, QuantizedExpertsInOneTensorAreNamedAsSuch) {
  for (const char* name : {"gate_up_proj_blocks", "gate_up_proj", "gate_up_proj.weight_packed",
                           "gate_up_proj_weight_scale", "w13_weight"}) {
    const TempDir dir;
    std::vector<TestTensor> tensors = TinyModel(
        TinyConfig(), {NamingStyle::kHuggingFace, StoredFormat::kBf16, StoredFormat::kBf16, false});
    std::erase_if(tensors, [](const TestTensor& tensor) {
      return tensor.name.find(".experts.") != std::string::npos;
    });
    for (int layer = 0; layer < 3; ++layer) {
      tensors.push_back({fmt::format("model.layers.{}.mlp.experts.{}", layer, name),
                         DType::kU8,
                         {4, 64, 32},
                         std::string(4 * 64 * 32, '\0')});
    }
    const auto model = OpenChanged(dir, tensors);
    ASSERT_FALSE(model);
    EXPECT_NE(model.error().message.find("all experts of a layer together and quantized"),
              std::string::npos)
        << model.error().message;
    EXPECT_EQ(model.error().message.find("missing"), std::string::npos) << model.error().message;
  }
}

}  // namespace
}  // namespace halfbyte
