#include "device/cuda/launch.cuh"
#include "kernels/sm90_moe/pack_expert.h"

namespace halfbyte::sm90 {
namespace {

// Sixteen codes of one row, and their scale.
struct RowBlock {
  uint64_t codes = 0;
  uint8_t scale = kZeroScaleByte;
};

// Zeros beyond the matrix.
__device__ RowBlock LoadRowBlock(const UploadedMatrix& matrix, int64_t rows, int64_t k, int64_t row,
                                 int64_t column) {
  RowBlock block;
  if (row >= rows || column >= k) return block;
  const uint8_t e4m3 = matrix.block_scales[row * (k / 16) + column / 16];
  block.scale = ScaleByte(e4m3);
  if (e4m3 != 0) {
    block.codes = *reinterpret_cast<const uint64_t*>(matrix.codes + row * (k / 2) + column / 2);
  }
  return block;
}

__device__ RowBlock LoadGateUp(const UploadedExpert& expert, const ExpertShape& shape, int64_t row,
                               int64_t column) {
  const GateUpRow at = GateUpRowAt(row);
  return LoadRowBlock(at.up ? expert.up : expert.gate, shape.intermediate, shape.hidden, at.channel,
                      column);
}

// blockIdx.x: block of the expert, gate_up first. A thread packs its sixteen columns of two rows,
// group by group.
__global__ void __launch_bounds__(kBlockThreads)
    PackExpert(const UploadedExpert expert, const ExpertShape shape, uint8_t* packed) {
  const PackedShape gate_up = shape.gate_up();
  const int64_t gate_up_blocks = gate_up.strips * gate_up.k_blocks();
  const bool is_down = blockIdx.x >= gate_up_blocks;
  const PackedShape matrix = is_down ? shape.down() : gate_up;
  const int64_t index = is_down ? blockIdx.x - gate_up_blocks : blockIdx.x;
  const int64_t strip = index / matrix.k_blocks(), k_block = index % matrix.k_blocks();
  uint8_t* block =
      packed + (is_down ? shape.down_offset() : 0) + matrix.block_offset(strip, k_block);
  const int64_t thread = threadIdx.x;
  const int64_t row = strip * kStripRows + thread / 32 * 16 + thread % 32 / 4;
  for (int64_t group = 0; group < kBlockGroups; ++group) {
    const int64_t column = k_block * kBlockK + group * kGroupK + thread % 4 * 16;
    RowBlock a, b;
    if (is_down) {
      a = LoadRowBlock(expert.down, shape.hidden, shape.intermediate, row, column);
      b = LoadRowBlock(expert.down, shape.hidden, shape.intermediate, row + 8, column);
    } else {
      a = LoadGateUp(expert, shape, row, column);
      b = LoadGateUp(expert, shape, row + 8, column);
    }
    uint32_t word[4];
    for (int s = 0; s < 4; ++s) {
      word[s] = WeaveWord(static_cast<uint32_t>(a.codes >> (16 * s)) & 0xffffu,
                          static_cast<uint32_t>(b.codes >> (16 * s)) & 0xffffu);
    }
    *reinterpret_cast<uint4*>(block + CodeOffset(group, thread)) =
        make_uint4(word[0], word[1], word[2], word[3]);
    block[ScaleOffset(group, thread)] = a.scale;
    block[ScaleOffset(group, thread) + 1] = b.scale;
  }
}

}  // namespace

cudaError_t LaunchPackExpert(const UploadedExpert& expert, ExpertShape shape, uint8_t* packed,
                             cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(shape.bytes() / kBlockBytes);
  if (blocks == 0) return cudaSuccess;
  return LaunchKernel(PackExpert, {blocks, kBlockThreads}, stream, expert, shape, packed);
}

}  // namespace halfbyte::sm90
