#include <algorithm>

#include "kernels/sm90_dense/dense_configs.cuh"
#include "kernels/sm90_dense/dense_f32.h"
#include "kernels/sm90_dense/dense_work.h"
#include "kernels/sm90_dense/sm90_dense.h"

namespace halfbyte::sm90 {
namespace {

// Calls use(variant) for the variant of this width.
template <class Use>
cudaError_t ForVariant(int64_t tile_rows, const Use& use) {
  switch (tile_rows) {
    case 8:
      return use(DenseVariant<Dense8>{});
    case 16:
      return use(DenseVariant<Dense16>{});
    case 32:
      return use(DenseVariant<Dense32>{});
    case 64:
      return use(DenseVariant<Dense64>{});
    case 128:
      return use(DenseVariant<Dense128>{});
    default:
      return use(DenseVariant<Dense160>{});
  }
}

DenseShape ShapeOf(const DenseWeight& w) { return {w.format, w.rows, w.columns, w.groups}; }

// The driver makes descriptions of matrices; null: it does not know how.
using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
EncodeTiled Encoder() {
  static const EncodeTiled encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    const bool found = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return found ? reinterpret_cast<EncodeTiled>(function) : nullptr;
  }();
  return encode;
}

// x as [groups][columns / 64][tokens][64], a box of which is a stage of tokens.
cudaError_t Describe(const Bf16* x, int64_t tokens, const DenseShape& shape, int64_t tile_rows,
                     CUtensorMap& map) {
  const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[] = {size(kGroupK), size(tokens), size(shape.columns / kGroupK),
                              size(shape.groups)};
  const cuuint64_t strides[] = {size(shape.groups * shape.columns * 2), size(kGroupK * 2),
                                size(shape.columns * 2)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kGroupK), static_cast<cuuint32_t>(tile_rows),
                            tile_rows < 64 ? 2u : 1u, 1u};
  static_assert(Dense8::kTokenGroups == 2 && Dense32::kTokenGroups == 2 &&
                Dense64::kTokenGroups == 1 && Dense160::kTokenGroups == 1);
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const EncodeTiled encode = Encoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<Bf16*>(x), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

bool Aligned(const void* p, uintptr_t to) {
  return p != nullptr && reinterpret_cast<uintptr_t>(p) % to == 0;
}
bool IsValid(const DenseArguments& arguments) {
  if (arguments.products.empty() || std::ssize(arguments.products) > kMaxDenseProducts) {
    return false;
  }
  const DenseShape first = ShapeOf(arguments.products.front().weight);
  return Aligned(arguments.x, 16) &&
         std::ranges::all_of(arguments.products, [&](const DenseProduct& product) {
           const DenseShape shape = ShapeOf(product.weight);
           return IsDenseShape(shape) && shape.columns == first.columns &&
                  shape.groups == first.groups && Aligned(product.weight.packed, 16) &&
                  Aligned(product.y, 16);
         });
}

cudaError_t Multiprocessors(int& count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
}

cudaError_t LaunchOnTensorCores(const DenseArguments& arguments, cudaStream_t stream) {
  DenseOperands operands = {};
  DenseShape shapes[kMaxDenseProducts];
  size_t count = 0;
  for (const DenseFormat format : {DenseFormat::kBf16, DenseFormat::kFp8}) {
    for (const DenseProduct& product : arguments.products) {
      if (product.weight.format != format) continue;
      operands.targets[count] = {reinterpret_cast<const uint8_t*>(product.weight.packed), product.y,
                                 product.output};
      shapes[count++] = ShapeOf(product.weight);
    }
  }
  if (count == 0) return cudaSuccess;
  int multiprocessors = 0;
  cudaError_t error = Multiprocessors(multiprocessors);
  if (error != cudaSuccess) return error;
  DenseWork& work = operands.work;
  work = MakeDenseWork({shapes, count}, arguments.tokens, multiprocessors);
  if (work.segments > 1) {
    if (!Aligned(arguments.scratch, 16)) return cudaErrorInvalidValue;
    operands.arrivals = reinterpret_cast<int32_t*>(arguments.scratch);
    operands.partials = reinterpret_cast<float*>(arguments.scratch + kMostArrivals * 4);
  }
  error = Describe(arguments.x, arguments.tokens, shapes[0], work.tile_rows, operands.x);
  if (error != cudaSuccess) return error;
  return ForVariant(work.tile_rows, [&](auto variant) {
    return decltype(variant)::Start(operands, std::min(work.items, multiprocessors), stream);
  });
}

}  // namespace

cudaError_t PrepareDense() {
  if (Encoder() == nullptr) return cudaErrorNotSupported;
  for (const int64_t rows : kDenseTileRows) {
    const cudaError_t error =
        ForVariant(rows, [](auto variant) { return decltype(variant)::Prepare(); });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

int64_t DenseScratchBytes(std::span<const DenseWeight> weights, int64_t tokens) {
  int64_t most = 0;  // tokens of all tiles
  for (int64_t t = 1; t <= std::min(tokens, kMostTokensApart); ++t) {
    const int64_t rows = DenseTileRows(t);
    most = std::max(most, CeilDiv(t, rows) * rows);
  }
  int64_t strips = 0, segments = 1;
  for (const DenseWeight& w : weights) {
    if (w.format == DenseFormat::kF32) continue;
    strips += ShapeOf(w).strips();
    segments = ShapeOf(w).segments();
  }
  if (segments == 1) return 0;
  return kMostArrivals * 4 + strips * segments * kStripRows * most * 4;
}

cudaError_t LaunchDense(const DenseArguments& arguments, cudaStream_t stream) {
  if (!IsValid(arguments) || arguments.tokens < 0) return cudaErrorInvalidValue;
  if (arguments.tokens == 0) return cudaSuccess;
  cudaError_t error = LaunchOnTensorCores(arguments, stream);
  for (const DenseProduct& product : arguments.products) {
    if (error == cudaSuccess && product.weight.format == DenseFormat::kF32) {
      error = LaunchDenseF32(arguments.x, arguments.tokens, product, stream);
    }
  }
  return error;
}

}  // namespace halfbyte::sm90
