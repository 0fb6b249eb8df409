#include "cases/numeric_cases.h"
#include "device/context.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"
#include "numerics/bf16.h"
#include "numerics/block_scale.h"
#include "numerics/fp8_block.h"
#include "numerics/mxfp4_block.h"
#include "tensor/scale_check.h"

namespace halfbyte {
namespace {

int Canonical(int code) { return code == 8 ? 0 : code; }

// A list of bytes, or the words "0x00..0xff in order".
std::vector<std::byte> ListedBytes(const Json& value) {
  std::vector<std::byte> bytes;
  if (value.is_string()) {
    for (int i = 0; i <= 0xff; ++i) bytes.push_back(static_cast<std::byte>(i));
  } else {
    for (const Json& byte : value) bytes.push_back(static_cast<std::byte>(ByteOf(byte)));
  }
  return bytes;
}

void E2m1Decode(const Json& inputs, const Json& expected) {
  EXPECT_EQ(E2m1ToFloat(inputs["code"].get<uint8_t>()), FloatOf(expected["value"]));
}

void E2m1Encode(const Json& inputs, const Json& expected) {
  const uint8_t code = E2m1FromFloat(FloatFromBits(inputs["x_bits"]));
  EXPECT_EQ(Canonical(code), Canonical(expected["code"].get<int>()));
  EXPECT_EQ(E2m1ToFloat(code), FloatOf(expected["value"]));
}

void E4m3Decode(const Json& inputs, const Json& expected) {
  const auto bytes = ListedBytes(inputs["bytes"]);
  ASSERT_EQ(bytes.size(), expected["f32_bits"].size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(bytes[i]));
    if (expected["values"][i] == "nan") {
      EXPECT_TRUE(std::isnan(value)) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), HexOf(expected["f32_bits"][i])) << i;
    }
  }
}

void E4m3Encode(const Json& inputs, const Json& expected) {
  for (size_t i = 0; i < inputs["x_bits"].size(); ++i) {
    EXPECT_EQ(E4m3FromFloat(FloatFromBits(inputs["x_bits"][i])), ByteOf(expected["bytes"][i])) << i;
  }
}

void E8m0Decode(const Json& inputs, const Json& expected) {
  const auto bytes = ListedBytes(inputs["bytes"]);
  if (expected.contains("error")) {
    const Status status = CheckE8m0Scales(bytes, 1, "layers.0.w1.scale");
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message.find("layers.0.w1.scale"), std::string::npos);
    EXPECT_NE(status.error().message.find("[0, 0]"), std::string::npos);
    return;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    const float value = E8m0ToFloat(static_cast<uint8_t>(bytes[i]));
    if (expected["f32_bits"][i] == "nan" || expected["exponents"][i] == "nan") {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), HexOf(expected["f32_bits"][i])) << i;
      EXPECT_EQ(std::ilogb(value), expected["exponents"][i].get<int>()) << i;
    }
  }
}

void E8m0EncodeUp(const Json& inputs, const Json& expected) {
  const float amax = FloatFromBits(inputs["amax_bits"]);
  const uint8_t byte = inputs["element_max"] == 6 ? Mxfp4BlockScale(amax) : Fp8BlockScale(amax);
  EXPECT_EQ(byte, ByteOf(expected["byte"]));
  EXPECT_EQ(int{byte} - 127, expected["exponent"].get<int>());
}

void NibblePack(const Json& inputs, const Json& expected) {
  const auto codes = inputs["codes"].get<std::vector<uint8_t>>();
  std::vector<uint8_t> packed;
  for (size_t i = 0; i < codes.size(); i += 2) packed.push_back(PackE2m1(codes[i], codes[i + 1]));
  EXPECT_EQ(packed, BytesOf(expected["bytes"]));
  for (size_t i = 0; i < codes.size(); ++i) {
    EXPECT_EQ(E2m1ToFloat(UnpackE2m1(packed.data(), static_cast<int64_t>(i))),
              FloatOf(expected["values"][i]));
  }
}

// What another writer stores need not be what we would write, but must be accepted and mean this.
void ExpectDecodes(const std::vector<uint8_t>& codes, uint8_t scale, GlobalScale global,
                   const Json& decoded) {
  const auto byte = static_cast<std::byte>(scale);
  EXPECT_TRUE(CheckE4m3BlockScales(std::span(&byte, 1), 1, "scales").has_value());
  for (int64_t i = 0; i < kNvfp4Block; ++i) {
    ExpectWithinOneStep(DequantizeNvfp4(UnpackE2m1(codes.data(), i), scale, global),
                        decoded[static_cast<size_t>(i)]);
  }
}

void QuantizeBlock(const Json& inputs, const Json& expected) {
  const GlobalScale global(FloatFromBits(inputs["global_scale_bits"]));
  const uint8_t scale = ByteOf(expected["block_scale"]);
  ExpectDecodes(BytesOf(expected["packed"]), scale, global, expected["decoded"]);
  if (inputs["rule"] != "halfbyte") return;
  if (inputs.contains("tensor_amax")) {
    EXPECT_EQ(GlobalScale::FromAmax(FloatOf(inputs["tensor_amax"])), global);
  }
  std::vector<float> x;
  for (const Json& bits : inputs["x_bits"]) x.push_back(FloatFromBits(bits));
  const FloatRows rows = FloatRows::Of(MatrixView<const float>{x.data(), 1, kNvfp4Block});
  for (const CpuIsa isa : SupportedCpuIsas()) {
    SCOPED_TRACE(CpuIsaName(isa));
    Nvfp4Matrix matrix(1, kNvfp4Block, global);
    const auto stats = QuantizeNvfp4(Context(Pool(), isa), rows, global, Nvfp4Rule::kAmaxTo6,
                                     Nvfp4Output::Of(matrix));
    ASSERT_TRUE(stats.has_value());
    EXPECT_EQ(matrix.block_scales()[0], scale);
    for (int64_t i = 0; i < kNvfp4Block; ++i) {
      EXPECT_EQ(Canonical(UnpackE2m1(matrix.codes(), i)),
                Canonical(expected["codes"][static_cast<size_t>(i)].get<int>()));
      ExpectWithinOneStep(matrix.view().at(0, i), expected["decoded"][static_cast<size_t>(i)]);
    }
    if (expected.contains("saturated_blocks")) {
      EXPECT_EQ(stats->clipped, expected["saturated_blocks"].get<int64_t>());
    }
  }
}

void BlockScaleFromRatio(const Json& inputs, const Json& expected) {
  const float tensor_amax = 2688;
  const float x[kNvfp4Block] = {tensor_amax / FloatOf(inputs["tensor_amax_over_block_amax"])};
  Nvfp4BlockStats stats;
  const Nvfp4Block block = QuantizeNvfp4Block(x, GlobalScale::FromAmax(tensor_amax), &stats);
  EXPECT_EQ(block.scale, ByteOf(expected["block_scale"]));
  EXPECT_EQ(stats.clipped, expected["saturated_blocks"].get<int64_t>());
}

void Dequantize(const Json& inputs, const Json& expected) {
  ExpectWithinOneStep(DequantizeNvfp4(inputs["code"].get<uint8_t>(), ByteOf(inputs["block_scale"]),
                                      GlobalScale(FloatFromBits(inputs["global_scale_bits"]))),
                      expected["value"]);
}

void DivisorToMultiplier(const Json& inputs, const Json& expected) {
  const EncodeScale divisor(FloatFromBits(inputs["divisor_bits"]));
  const GlobalScale multiplier = GlobalScale::FromEncode(divisor);
  const EncodeScale again = EncodeScale::FromGlobal(multiplier);
  EXPECT_EQ(multiplier.value(), FloatFromBits(expected["multiplier_bits"]));
  EXPECT_EQ(again.value(), FloatFromBits(expected["divisor_again_bits"]));
  EXPECT_EQ(again.value() == divisor.value(), expected["round_trip_exact"].get<bool>());
}

void MultiplierToDivisor(const Json& inputs, const Json& expected) {
  const GlobalScale multiplier(FloatFromBits(inputs["multiplier_bits"]));
  const EncodeScale divisor = EncodeScale::FromGlobal(multiplier);
  const GlobalScale again = GlobalScale::FromEncode(divisor);
  EXPECT_EQ(divisor.value(), FloatFromBits(expected["divisor_bits"]));
  EXPECT_EQ(again.value(), FloatFromBits(expected["multiplier_again_bits"]));
  EXPECT_EQ(again == multiplier, expected["round_trip_exact"].get<bool>());
}

GlobalScale FromDivisor(const Json& value) {
  return GlobalScale::FromEncode(EncodeScale(FloatOf(value)));
}

void AlphaFromDivisors(const Json& inputs, const Json& expected) {
  const float alpha =
      GemmAlpha(FromDivisor(inputs["input_divisor"]), FromDivisor(inputs["weight_divisor"]));
  ExpectRelative(alpha, NumberOf(expected["alpha"]), 1e-6);
}

void TopValue(const Json& inputs, const Json& expected) {
  ExpectRelative(DequantizeNvfp4(7, 0x7e, FromDivisor(inputs["weight_divisor"])),
                 NumberOf(expected["value"]), 1e-6);
}

void MoeFactors(const Json& inputs, const Json& expected) {
  const float gate_up =
      GemmAlpha(FromDivisor(inputs["gate_up_input"]), FromDivisor(inputs["gate_up_weight"]));
  const GlobalScale down_input = FromDivisor(inputs["down_input"]);
  const float requantize = EncodeScale::FromGlobal(down_input).value();
  const float down = GemmAlpha(down_input, FromDivisor(inputs["down_weight"]));
  ExpectRelative(gate_up, NumberOf(expected["gate_up_alpha"]), 1e-6);
  ExpectRelative(requantize, NumberOf(expected["down_input_encode"]), 1e-6);
  ExpectRelative(gate_up * requantize, NumberOf(expected["gate_up_alpha_with_requant"]), 1e-6);
  ExpectRelative(down, NumberOf(expected["down_alpha"]), 1e-6);
}

void Rescale(const Json& inputs, const Json& expected) {
  const RescaledBlockScale rescaled = RescaleBlockScale(
      ByteOf(inputs["block_scale"]), FloatOf(inputs["old_global_over_new_global"]));
  EXPECT_EQ(rescaled.bits, ByteOf(expected["block_scale"]));
  EXPECT_EQ(rescaled.exact, expected["exact"].get<bool>());
  EXPECT_EQ(rescaled.lost, expected["lost"].get<bool>());
}

void Mxfp4ToFp8Tile(const Json& inputs, const Json& expected) {
  const auto byte = [](const Json& exponent) {
    return static_cast<uint8_t>(exponent.get<int>() + 127);
  };
  const uint8_t tile = Fp8TileScale(byte(inputs["tile_max_exponent"]));
  const float value =
      DequantizeMxfp4(inputs["code"].get<uint8_t>(), byte(inputs["block_exponent"]));
  const uint8_t fp8 = Fp8Encode(value, tile);
  EXPECT_EQ(value, NumberOf(expected["true_value"]));
  EXPECT_EQ(int{tile} - 127, expected["fp8_scale_exponent"].get<int>());
  EXPECT_EQ(fp8, ByteOf(expected["fp8_byte"]));
  EXPECT_EQ(Fp8Decode(fp8, tile) == value, expected["exact"].get<bool>());
}

void Bf16Sum(const Json& inputs, const Json& expected) {
  const std::vector<float> x = FloatsOf(inputs["values"]);
  ASSERT_EQ(x.size(), 4u);
  const float sum = inputs["order"] == "left to right"
                        ? RoundToBf16(RoundToBf16(RoundToBf16(x[0] + x[1]) + x[2]) + x[3])
                        : RoundToBf16(RoundToBf16(x[0] + x[3]) + RoundToBf16(x[1] + x[2]));
  EXPECT_EQ(sum, FloatOf(expected["sum"]));
}

}  // namespace

void AddFormatCases(CaseHandlers& handlers) {
  handlers["e2m1_decode"] = E2m1Decode;
  handlers["e2m1_encode"] = E2m1Encode;
  handlers["e4m3_decode"] = E4m3Decode;
  handlers["e4m3_encode"] = E4m3Encode;
  handlers["e8m0_decode"] = E8m0Decode;
  handlers["e8m0_encode_up"] = E8m0EncodeUp;
  handlers["nibble_pack"] = NibblePack;
  handlers["nvfp4_quantize_block"] = QuantizeBlock;
  handlers["block_scale_from_ratio"] = BlockScaleFromRatio;
  handlers["nvfp4_dequantize"] = Dequantize;
  handlers["global_scale_divisor_to_multiplier"] = DivisorToMultiplier;
  handlers["global_scale_multiplier_to_divisor"] = MultiplierToDivisor;
  handlers["gemm_alpha_from_divisors"] = AlphaFromDivisors;
  handlers["tensor_top_value_from_divisor"] = TopValue;
  handlers["moe_factors_from_encode_scales"] = MoeFactors;
  handlers["rescale_block_scale"] = Rescale;
  handlers["mxfp4_to_fp8_tile"] = Mxfp4ToFp8Tile;
  handlers["bf16_sum"] = Bf16Sum;
}

}  // namespace halfbyte
