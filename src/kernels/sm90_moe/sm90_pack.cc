#include "kernels/sm90_moe/sm90_pack.h"

#include <cstring>

#include "base/check.h"
#include "numerics/e2m1.h"

namespace halfbyte::sm90 {
namespace {

// Checkpoint bytes of a matrix, or of gate and up together. Rows from `rows` on and columns from
// `k` on are zeros.
struct PackSource {
  // [rows, k / 2] and [rows, k / 16]: gate and up, or down alone.
  const uint8_t* codes[2] = {};
  const uint8_t* scales[2] = {};
  int64_t rows = 0;  // of one matrix
  int64_t k = 0;
  bool gate_up = false;
};

// A row of a packed matrix in its source; row >= rows: none.
struct SourceRow {
  int matrix = 0;
  int64_t row = 0;
};
SourceRow SourceOf(const PackSource& source, int64_t packed_row) {
  if (!source.gate_up) return {0, packed_row};
  const GateUpRow at = GateUpRowAt(packed_row);
  return {at.up ? 1 : 0, at.channel};
}

// The sixteen codes of a block of NVFP4, lowest nibble first, and its scale as ScaleByte.
struct SourceBlock {
  uint64_t codes = 0;
  uint8_t scale = kZeroScaleByte;
};
SourceBlock ReadBlock(const PackSource& source, int64_t packed_row, int64_t column) {
  const SourceRow at = SourceOf(source, packed_row);
  if (at.row >= source.rows || column >= source.k) return {};
  SourceBlock block;
  block.scale = ScaleByte(source.scales[at.matrix][at.row * (source.k / 16) + column / 16]);
  if (block.scale == kZeroScaleByte) return block;
  const uint8_t* codes = source.codes[at.matrix] + at.row * (source.k / 2) + column / 2;
  for (int i = 0; i < 8; ++i) block.codes |= uint64_t{codes[i]} << (8 * i);
  return block;
}

// What thread `thread` owns of a group of 64 columns: 16 bytes of codes, 2 of scales.
struct PackedPart {
  uint32_t words[4] = {};
  uint8_t scales[2] = {};
};
PackedPart PackPart(const PackSource& source, int64_t strip, int64_t k_block, int64_t group,
                    int64_t thread) {
  const int64_t row = strip * kStripRows + thread / 32 * 16 + thread % 32 / 4;
  const int64_t column = k_block * kBlockK + group * kGroupK + thread % 4 * 16;
  const SourceBlock a = ReadBlock(source, row, column);
  const SourceBlock b = ReadBlock(source, row + 8, column);
  PackedPart part;
  for (int step = 0; step < 4; ++step) {
    part.words[step] = WeaveWord(static_cast<uint32_t>(a.codes >> (16 * step)) & 0xffff,
                                 static_cast<uint32_t>(b.codes >> (16 * step)) & 0xffff);
  }
  part.scales[0] = a.scale;
  part.scales[1] = b.scale;
  return part;
}

void PackStrip(const PackSource& source, const PackedShape& shape, int64_t strip, uint8_t* out) {
  for (int64_t kb = 0; kb < shape.k_blocks(); ++kb) {
    uint8_t* block = out + shape.block_offset(strip, kb);
    for (int64_t group = 0; group < kBlockGroups; ++group) {
      for (int64_t thread = 0; thread < kBlockThreads; ++thread) {
        const PackedPart part = PackPart(source, strip, kb, group, thread);
        std::memcpy(block + CodeOffset(group, thread), part.words, sizeof(part.words));
        std::memcpy(block + ScaleOffset(group, thread), part.scales, sizeof(part.scales));
      }
    }
  }
}

void PackMatrix(ThreadPool& pool, const PackSource& source, const PackedShape& shape,
                uint8_t* out) {
  pool.ParallelFor(shape.strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) PackStrip(source, shape, strip, out);
  });
}

// The block of NVFP4 at a packed row and a column that is a multiple of 16.
void UnpackBlock(const PackedShape& shape, const uint8_t* packed, int64_t row, int64_t column,
                 uint8_t* codes, uint8_t* scale) {
  const int64_t in_strip = row % kStripRows, half = in_strip % 16 / 8;
  const int64_t thread = in_strip / 16 * 32 + in_strip % 8 * 4 + column % kGroupK / 16;
  const int64_t group = column % kBlockK / kGroupK;
  const uint8_t* block = packed + shape.block_offset(row / kStripRows, column / kBlockK);
  *scale = E4m3OfScaleByte(block[ScaleOffset(group, thread) + half]);
  for (int64_t step = 0; step < 4; ++step) {
    uint32_t word;
    std::memcpy(&word, block + CodeOffset(group, thread) + 4 * step, sizeof(word));
    for (int pair = 0; pair < 2; ++pair) {
      const int index = static_cast<int>(half) + 2 * pair;
      codes[step * 2 + pair] = PackE2m1(UnweaveCode(word, index, 0), UnweaveCode(word, index, 1));
    }
  }
}

template <class PackedRow>
Nvfp4Matrix UnpackMatrix(const PackedShape& shape, const uint8_t* packed, int64_t rows,
                         const PackedRow& packed_row) {
  Nvfp4Matrix out(rows, shape.k, GlobalScale(1.0f));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < shape.k; column += kNvfp4Block) {
      UnpackBlock(shape, packed, packed_row(row), column,
                  out.codes() + (row * shape.k + column) / 2,
                  out.block_scales() + (row * shape.k + column) / kNvfp4Block);
    }
  }
  return out;
}

}  // namespace

void PackExpert(ThreadPool& pool, const Nvfp4Expert& expert, uint8_t* out) {
  const ExpertShape shape = expert.shape();
  HB_CHECK(expert.up.rows == shape.intermediate && expert.up.k == shape.hidden &&
               expert.down.rows == shape.hidden && expert.down.k == shape.intermediate,
           "gate [{}, {}], up [{}, {}], down [{}, {}]", expert.gate.rows, expert.gate.k,
           expert.up.rows, expert.up.k, expert.down.rows, expert.down.k);
  const PackSource gate_up{{expert.gate.codes, expert.up.codes},
                           {expert.gate.block_scales, expert.up.block_scales},
                           shape.intermediate,
                           shape.hidden,
                           true};
  const PackSource down{
      {expert.down.codes}, {expert.down.block_scales}, shape.hidden, shape.intermediate, false};
  PackMatrix(pool, gate_up, shape.gate_up(), out);
  PackMatrix(pool, down, shape.down(), out + shape.down_offset());
}

UnpackedExpert UnpackExpert(const ExpertShape& shape, const uint8_t* packed) {
  const auto gate_up_row = [](bool up) {
    return [up](int64_t channel) { return RowOfGateUp({up, channel}); };
  };
  const PackedShape gate_up = shape.gate_up();
  return {UnpackMatrix(gate_up, packed, shape.intermediate, gate_up_row(false)),
          UnpackMatrix(gate_up, packed, shape.intermediate, gate_up_row(true)),
          UnpackMatrix(shape.down(), packed + shape.down_offset(), shape.hidden,
                       [](int64_t row) { return row; })};
}

}  // namespace halfbyte::sm90
