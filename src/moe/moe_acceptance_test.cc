// The accuracy gates of moe-layer.md §10 on its synthetic data: weights N(0, 1/K), input N(0, 1),
// hidden 2048, intermediate 1024, 32 rows. Each gate is a cosine and a relative L2 error, because a
// cosine alone is blind to a lost factor (TST-01).
#include <gtest/gtest.h>

#include <cmath>

#include "moe/moe_test_layer.h"

namespace halfbyte {
namespace {

constexpr TestShape kShape{
    .hidden = 2048, .intermediate = 1024, .experts = 3, .tokens = 32, .top_k = 1};

class MoeAcceptance : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    layer_ = new TestLayer(kShape, WeightFormat::kNvfp4, 1, 1.0f);
    input_ = new TestInput(kShape, 2);
    dequantized_ = new std::vector<double>(ExactLayer(*layer_, *input_));
    original_ = new std::vector<double>(OriginalLayer(*layer_, *input_));
  }
  static void TearDownTestSuite() {
    delete layer_;
    delete input_;
    delete dequantized_;
    delete original_;
  }

  static Agreement Against(const std::vector<double>& reference, const MoeParams& params) {
    return Compare(layer_->Run(params, *input_), reference, kShape.hidden);
  }
  // Static scales as a perfect calibration would give them, times 2^5.
  static MoeParams StaticParams(float gate_up_factor, float down_factor) {
    MoeParams params = layer_->Params(Arithmetic::kW4a4);
    params.gate_up_input_scale = GlobalScale(32 * 4.5f / 2688 * gate_up_factor);
    params.down_input_scale = GlobalScale(32 * 6.0f / 2688 * down_factor);
    return params;
  }

  static TestLayer* layer_;
  static TestInput* input_;
  static std::vector<double>* dequantized_;
  static std::vector<double>* original_;
};
TestLayer* MoeAcceptance::layer_;
TestInput* MoeAcceptance::input_;
std::vector<double>* MoeAcceptance::dequantized_;
std::vector<double>* MoeAcceptance::original_;

// cos >= c allows an error of about sqrt(2 (1 - c)).
double L2For(double cosine) { return 1.05 * std::sqrt(2 * (1 - cosine)); }

TEST_F(MoeAcceptance, W4a4StaysNearTheDequantizedLayer) {
  for (const MoeParams& params : {layer_->Params(Arithmetic::kW4a4), StaticParams(1, 1)}) {
    const Agreement a = Against(*dequantized_, params);
    EXPECT_GE(a.cosine, 0.985);
    EXPECT_GE(a.worst_row_cosine, 0.980);
    EXPECT_LE(a.relative_l2, L2For(0.985));
    const Agreement o = Against(*original_, params);
    EXPECT_GE(o.cosine, 0.970);
    EXPECT_LE(o.relative_l2, L2For(0.970));
  }
}

TEST_F(MoeAcceptance, W4a16IsTheDequantizedLayerUpToBf16) {
  const Agreement a = Against(*dequantized_, layer_->Params(Arithmetic::kW4a16));
  EXPECT_GE(a.cosine, 1 - 1e-5);
  EXPECT_LE(a.relative_l2, 0x1p-8);
  const Agreement o = Against(*original_, layer_->Params(Arithmetic::kW4a16));
  EXPECT_GE(o.cosine, 0.984);
  EXPECT_LE(o.relative_l2, L2For(0.984));
}

TEST_F(MoeAcceptance, W4a8StaysNearTheDequantizedLayerAndNearTheOriginal) {
  // A block of 16 normal numbers has an amax of about 2: its step, 2/127, has an error of
  // 2/127/sqrt(12) = 0.0045 of the standard deviation; three products and h make it 0.9 %.
  const Agreement a = Against(*dequantized_, layer_->Params(Arithmetic::kW4a8));
  EXPECT_GE(a.cosine, 1 - 1e-4);
  EXPECT_GE(a.worst_row_cosine, 1 - 1e-4);
  EXPECT_LE(a.relative_l2, L2For(1 - 1e-4));
  EXPECT_GE(a.relative_l2, 0x1p-8) << "w4a16 would be nearer";
  const Agreement o = Against(*original_, layer_->Params(Arithmetic::kW4a8));
  EXPECT_GE(o.cosine, 0.984);
  EXPECT_LE(o.relative_l2, L2For(0.984));
}

TEST_F(MoeAcceptance, ScalesThatAreTooSmallFailTheGate) {  // R70, R71, R72
  EXPECT_LT(Against(*original_, StaticParams(0.0935f / 32, 0.0935f / 32)).cosine, 0.970);
  EXPECT_LT(Against(*original_, StaticParams(0.0935f / 32, 1)).cosine, 0.970);
  EXPECT_LT(Against(*original_, StaticParams(1, 1.0f / 83 / 32)).cosine, 0.970);
}

// x rounded to multiples of 0.5 first and to a code then, where it should be rounded once: the
// fault that §4 tells of. In units of the block scale; a tie of the second step goes up.
float HalfStep(float x) {
  const float half = std::nearbyint(std::abs(x) * 2) / 2;
  return std::copysign(E2m1ToFloat(E2m1FromFloat(half)), x);
}

TEST_F(MoeAcceptance, RoundingTwiceWouldFailTheGate) {  // QNT-05
  // The input of the first stage alone, on exact arithmetic: the gate has to tell the two apart.
  TestInput once = *input_, twice = *input_;
  for (size_t i = 0; i < once.hidden.size(); i += kNvfp4Block) {
    const GlobalScale global(32 * 4.5f / 2688);
    const Nvfp4Block block = QuantizeNvfp4Block(&once.hidden[i], global);
    const float step = E4m3ToFloat(block.scale) * global.value();
    DequantizeNvfp4Block(block, global, &once.hidden[i]);
    for (size_t j = i; j < i + kNvfp4Block; ++j)
      twice.hidden[j] = HalfStep(twice.hidden[j] / step) * step;
  }
  const MoeParams exact = layer_->Params(Arithmetic::kW4a16);
  const double right = 1 - Compare(layer_->Run(exact, once), *dequantized_, kShape.hidden).cosine;
  const double wrong = 1 - Compare(layer_->Run(exact, twice), *dequantized_, kShape.hidden).cosine;
  EXPECT_GT(wrong, 1.2 * right);
}

TEST_F(MoeAcceptance, ALostFactorFailsTheErrorBoundThoughNotTheCosine) {  // TST-01
  std::vector<float> y = layer_->Run(layer_->Params(Arithmetic::kW4a16), *input_);
  for (float& value : y) value *= 1.5f;
  const Agreement a = Compare(y, *dequantized_, kShape.hidden);
  EXPECT_GE(a.cosine, 1 - 1e-5);
  EXPECT_GT(a.relative_l2, L2For(0.970));
}

}  // namespace
}  // namespace halfbyte
