#include "device/cuda/launch.cuh"
#include "kernels/sm90_dense/dense_layout.h"
#include "kernels/sm90_dense/sm90_dense.h"

namespace halfbyte::sm90 {
namespace {

constexpr int kThreads = 128;

// The rows of a matrix at the positions of one strip.
struct StripSource {
  int64_t first_row = 0;
  int64_t rows = 0;

  __device__ StripSource(const DenseShape& shape, int64_t strip) {
    const int64_t in_group = strip % shape.strips_of_group() * kStripRows;
    first_row = strip / shape.strips_of_group() * shape.rows_of_group() + in_group;
    rows = min(kStripRows, shape.rows_of_group() - in_group);
  }
  // -1: there is none.
  __device__ int64_t RowAt(int64_t position) const {
    const int64_t row = RowInStrip(position);
    return row < rows ? first_row + row : -1;
  }
};

// The E8M0 byte of the scale of these 128 x 128; -1: it is no power of two.
__device__ int ScaleExponent(const StoredDense& stored, int64_t row, int64_t column) {
  const int64_t at = row / 128 * CeilDiv(stored.columns, 128) + column / 128;
  if (stored.scale == DenseScale::kE8m0) return static_cast<int>(stored.scales[at]);
  const uint32_t bits = reinterpret_cast<const uint32_t*>(stored.scales)[at];
  return (bits & 0x807fffffu) == 0 ? static_cast<int>(bits >> 23) : -1;
}

// Block of threads: a block of the packed matrix.
__global__ void __launch_bounds__(kThreads)
    PackFp8(const StoredDense stored, const DenseShape shape, std::byte* packed, int32_t* unfit) {
  const int64_t strip = blockIdx.x / shape.k_blocks(), k_block = blockIdx.x % shape.k_blocks();
  const int thread = static_cast<int>(threadIdx.x);
  const int t = thread % 4;
  const StripSource source(shape, strip);
  std::byte* const block = packed + blockIdx.x * kDenseBlockBytes;
  auto* const scales =
      reinterpret_cast<uint32_t*>(packed + shape.scales_offset() + blockIdx.x * kDenseScaleBytes);
  int32_t bad = 0;
  for (int group = 0; group < 4; ++group) {
    const int64_t column = k_block * shape.block_k() + group * kGroupK;
    const bool filled = column < stored.columns;
    const int exponent = filled ? ScaleExponent(stored, source.first_row, column) : 127;
    const bool scaled = IsDenseScale(exponent);
    if (thread == 0 && group % 2 == 0) {
      scales[group / 2] = scaled ? DenseScaleWord(exponent) : 0;
      scales[2 + group / 2] = 0;
    }
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4] = {};
      for (int i = 0; i < 4; ++i) {
        const int64_t row = source.RowAt(thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8);
        if (row < 0 || !filled) continue;
        const auto* const from = reinterpret_cast<const uint8_t*>(stored.data) +
                                 row * stored.columns + column + (2 * half + i / 2) * 16 + 2 * t;
        const uint8_t codes[4] = {from[0], from[1], from[8], from[9]};
        for (const uint8_t code : codes) {
          const int magnitude = code & 0x7f;
          bad += magnitude == 0x7f || (magnitude != 0 && !scaled) ? 1 : 0;
        }
        words[i] = WeaveFp8(codes);
      }
      *reinterpret_cast<uint4*>(block + group * 4096 + half * 2048 + thread * 16) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  if (unfit != nullptr && bad != 0) atomicAdd(unfit, bad);
}

__global__ void __launch_bounds__(kThreads)
    PackBf16(const StoredDense stored, const DenseShape shape, std::byte* packed) {
  const int64_t strip = blockIdx.x / shape.k_blocks(), k_block = blockIdx.x % shape.k_blocks();
  const StripSource source(shape, strip);
  std::byte* const block = packed + blockIdx.x * kDenseBlockBytes;
  for (int i = static_cast<int>(threadIdx.x); i < kDenseBlockBytes / 16; i += kThreads) {
    const int group = i / 512, position = i / 8 % 64, piece = i % 8;
    const int64_t row = source.RowAt(position);
    const int64_t column = k_block * shape.block_k() + group * kGroupK + piece * 8;
    uint4 numbers{};
    if (row >= 0 && column < stored.columns) {
      numbers = *reinterpret_cast<const uint4*>(stored.data + (row * stored.columns + column) * 2);
    }
    *reinterpret_cast<uint4*>(block + group * (8 * kAtomBytes) + position * 128 +
                              (piece ^ position % 8) * 16) = numbers;
  }
}

bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

int64_t PackedBytes(DenseFormat format, int64_t rows, int64_t columns, int64_t groups) {
  return DenseShape{format, rows, columns, groups}.bytes();
}

cudaError_t LaunchPackDense(const StoredDense& stored, std::byte* packed, int32_t* unfit,
                            cudaStream_t stream) {
  const DenseShape shape{stored.format, stored.rows, stored.columns, stored.groups};
  const bool fp8 = stored.format == DenseFormat::kFp8;
  if (!IsDenseShape(shape) || fp8 != (stored.scale != DenseScale::kNone) ||
      !Aligned16(stored.data) || !Aligned16(packed)) {
    return cudaErrorInvalidValue;
  }
  if (stored.format == DenseFormat::kF32) {
    return cudaMemcpyAsync(packed, stored.data, static_cast<size_t>(shape.bytes()),
                           cudaMemcpyDeviceToDevice, stream);
  }
  const LaunchShape launch{dim3(static_cast<unsigned>(shape.blocks())), dim3(kThreads)};
  if (fp8) return LaunchKernel(PackFp8, launch, stream, stored, shape, packed, unfit);
  return LaunchKernel(PackBf16, launch, stream, stored, shape, packed);
}

}  // namespace halfbyte::sm90
