#include <algorithm>
#include <optional>

#include "cases/numeric_cases.h"
#include "numerics/mxfp4_block.h"
#include "tensor/mxfp4_to_nvfp4.h"
#include "tensor/tile_scales.h"

namespace halfbyte {
namespace {

void ScaleOffset(const Json& inputs, const Json& expected) {
  const TiledScales layout{inputs["rows"].get<int64_t>(), inputs["scale_cols"].get<int64_t>()};
  EXPECT_EQ(layout.tile_columns(), expected["k_tiles"].get<int64_t>());
  EXPECT_EQ(layout.padded_rows(), expected["padded_rows"].get<int64_t>());
  EXPECT_EQ(layout.tile_columns() * TiledScales::kTileBlocks,
            expected["padded_cols"].get<int64_t>());
  EXPECT_EQ(layout.bytes(), expected["buffer_bytes"].get<int64_t>());
  const int64_t real = LinearScales{layout.rows, layout.blocks}.bytes();
  EXPECT_EQ(layout.bytes() - real, expected["pad_bytes"].get<int64_t>());
  for (const Json& sample : expected["samples"]) {
    EXPECT_EQ(layout.offset(sample[0].get<int64_t>(), sample[1].get<int64_t>()),
              sample[2].get<int64_t>());
  }
  std::vector<int64_t> offsets;
  int64_t checksum = 0;
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t block = 0; block < layout.blocks; ++block) {
      offsets.push_back(layout.offset(row, block));
      checksum = (checksum + static_cast<int64_t>(offsets.size()) * offsets.back()) % 1'000'000'007;
    }
  }
  if (expected.contains("checksum")) {
    EXPECT_EQ(checksum, expected["checksum"].get<int64_t>());
  }
  if (expected.contains("all_offsets")) {
    EXPECT_EQ(offsets, IntsOf(expected["all_offsets"]));
  }
  // The same places by moving bytes: scale i of the linear order carries i mod 127.
  std::vector<uint8_t> linear(static_cast<size_t>(real));
  for (size_t i = 0; i < linear.size(); ++i) linear[i] = static_cast<uint8_t>(i % 127);
  std::vector<uint8_t> tiled(static_cast<size_t>(layout.bytes()), 0x7f);
  TileScales(linear.data(), layout, tiled.data());
  for (size_t i = 0; i < linear.size(); ++i) {
    ASSERT_EQ(tiled[static_cast<size_t>(offsets[i])], linear[i]);
  }
  EXPECT_EQ(std::count(tiled.begin(), tiled.end(), 0x7f), 0);  // padding is 0
}

void ScaleOffsetInverse(const Json& inputs, const Json& expected) {
  const TiledScales layout{inputs["rows"].get<int64_t>(), inputs["scale_cols"].get<int64_t>()};
  const auto [row, block] = layout.position(inputs["offset"].get<int64_t>());
  EXPECT_EQ(row, expected["row"].get<int64_t>());
  EXPECT_EQ(block, expected["col"].get<int64_t>());
  EXPECT_EQ(row >= layout.rows || block >= layout.blocks, expected["padding"].get<bool>());
}

// Blocks of 32 in one row, with codes that are given, or six everywhere, or zero where told.
struct Mxfp4Row {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  WeightMatrix matrix;

  Mxfp4Row(const Json& exponent_bytes, const std::vector<int64_t>& all_zero,
           const std::vector<uint8_t>& packed) {
    const auto blocks = exponent_bytes.size();
    codes.assign(blocks * 16, std::byte{0x7f});  // -6, 6, -6, 6 ...
    for (size_t i = 0; i < packed.size(); ++i) codes[i] = static_cast<std::byte>(packed[i]);
    for (const int64_t block : all_zero) {
      std::fill_n(codes.begin() + block * 16, 16, std::byte{0x80});  // 0, -0, 0, -0 ...
    }
    for (const Json& byte : exponent_bytes) {
      scales.push_back(static_cast<std::byte>(byte.get<int>()));
    }
    matrix.format = WeightFormat::kMxfp4;
    matrix.rows = 1;
    matrix.columns = static_cast<int64_t>(blocks) * kMxfp4Block;
    matrix.data = codes.data();
    matrix.scales = scales.data();
    matrix.scale_dtype = DType::kF8E8m0;
  }
};

void ExpectScales(Mxfp4AsNvfp4& result, const Json& expected,
                  const std::vector<int64_t>& inexact_blocks) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto block = static_cast<int64_t>(i / 2);
    if (std::count(inexact_blocks.begin(), inexact_blocks.end(), block) != 0) continue;
    EXPECT_EQ(result.matrix.block_scales()[i], ByteOf(expected[i])) << i;
  }
}

// Same codes and, bit for bit, same numbers, outside the blocks that are reported.
void ExpectLosslessOutside(const Mxfp4Row& source, Mxfp4AsNvfp4& result) {
  const auto* source_codes = reinterpret_cast<const uint8_t*>(source.codes.data());
  for (int64_t i = 0; i < source.matrix.columns; ++i) {
    const int64_t block = i / kMxfp4Block;
    if (std::count(result.inexact_blocks.begin(), result.inexact_blocks.end(), block) != 0)
      continue;
    const uint8_t code = UnpackE2m1(source_codes, i);
    ASSERT_EQ(UnpackE2m1(result.matrix.codes(), i), code) << i;
    const float before =
        DequantizeMxfp4(code, static_cast<uint8_t>(source.scales[static_cast<size_t>(block)]));
    ASSERT_EQ(std::bit_cast<uint32_t>(result.matrix.view().at(0, i)),
              std::bit_cast<uint32_t>(before))
        << i;
  }
}

void Mxfp4ToNvfp4Case(const Json& inputs, const Json& expected) {
  std::vector<uint8_t> packed;
  if (inputs.contains("packed")) packed = BytesOf(inputs["packed"]);
  const Mxfp4Row source(inputs["block_exponent_bytes"], IntsOf(inputs["all_zero_blocks"]), packed);
  const auto largest = LargestMxfp4Scale(source.matrix, "layers.0.w1.weight");
  if (expected.contains("error")) {
    ASSERT_FALSE(largest.has_value());
    EXPECT_NE(largest.error().message.find("layers.0.w1.weight"), std::string::npos);
    EXPECT_NE(largest.error().message.find("[0, 1]"), std::string::npos);
    return;
  }
  ASSERT_TRUE(largest.has_value());
  Mxfp4AsNvfp4 result = Mxfp4ToNvfp4(source.matrix, *largest);
  const GlobalScale global = result.matrix.view().global_scale;
  EXPECT_EQ(global.value(), FloatFromBits(expected["global_scale_bits"]));
  EXPECT_EQ(global.value(), std::ldexp(1.0f, expected["global_scale_exponent"].get<int>()));
  EXPECT_EQ(result.lossless(), expected["lossless"].get<bool>());
  EXPECT_EQ(result.inexact_blocks, IntsOf(expected["inexact_blocks"]));
  ExpectScales(result, expected["block_scales"], result.inexact_blocks);
  ExpectLosslessOutside(source, result);
  if (expected.contains("decoded")) {
    for (size_t i = 0; i < expected["decoded"].size(); ++i) {
      EXPECT_EQ(result.matrix.view().at(0, static_cast<int64_t>(i)),
                FloatOf(expected["decoded"][i]));
    }
  }
}

void Mxfp4ToNvfp4Joint(const Json& inputs, const Json& expected) {
  const Mxfp4Row gate(inputs["gate_exponent_bytes"], {}, {});
  const Mxfp4Row up(inputs["up_exponent_bytes"], {}, {});
  const auto gate_largest = LargestMxfp4Scale(gate.matrix, "gate");
  const auto up_largest = LargestMxfp4Scale(up.matrix, "up");
  ASSERT_TRUE(gate_largest.has_value() && up_largest.has_value());
  const std::optional<uint8_t> largest = std::max(*gate_largest, *up_largest);
  for (const auto& [source, scales] :
       {std::pair(&gate, "gate_block_scales"), std::pair(&up, "up_block_scales")}) {
    Mxfp4AsNvfp4 result = Mxfp4ToNvfp4(source->matrix, largest);
    EXPECT_EQ(result.matrix.view().global_scale.value(),
              std::ldexp(1.0f, expected["global_scale_exponent"].get<int>()));
    EXPECT_EQ(result.lossless(), expected["lossless"].get<bool>());
    ExpectScales(result, expected[scales], {});
    ExpectLosslessOutside(*source, result);
  }
}

void SplitContractionCase(const Json& inputs, const Json& expected) {
  const ContractionPart part =
      SplitContraction(inputs["k"].get<int64_t>(), inputs["parts"].get<int64_t>());
  EXPECT_EQ(part.elements, expected["elements"].get<int64_t>());
  EXPECT_EQ(part.blocks, expected["scale_groups"].get<int64_t>());
  EXPECT_EQ(part.whole_tiles, expected["whole_128x4_tiles"].get<bool>());
}

}  // namespace

void AddLayoutCases(CaseHandlers& handlers) {
  handlers["scale_offset_128x4"] = ScaleOffset;
  handlers["scale_offset_128x4_inverse"] = ScaleOffsetInverse;
  handlers["mxfp4_to_nvfp4"] = Mxfp4ToNvfp4Case;
  handlers["mxfp4_to_nvfp4_joint"] = Mxfp4ToNvfp4Joint;
  handlers["split_contraction"] = SplitContractionCase;
}

}  // namespace halfbyte
