#include "kernels/sm90_moe/sm90_gemm.h"
#include "kernels/sm90_moe/sm90_gemm_launch.cuh"

namespace halfbyte::sm90 {
namespace {

// Calls use(kernels, tiles) for the kernels of a variant and the tiles that they take.
template <class Use>
cudaError_t ForKernels(GemmVariant variant, const Use& use) {
  switch (variant) {
    case GemmVariant::kFew:
    case GemmVariant::kDecode:
      return use(GemmKernels<DecodeConfig>{}, TilesOf::kAll);
    case GemmVariant::kMiddle:
      return use(GemmKernels<MiddleConfig>{}, TilesOf::kAll);
    case GemmVariant::kWide:
      return use(GemmKernels<WideConfig>{}, TilesOf::kAll);
    case GemmVariant::kPrefill:
      break;
  }
  const cudaError_t error = use(GemmKernels<PrefillConfig>{}, TilesOf::kWide);
  return error != cudaSuccess ? error : use(GemmKernels<NarrowConfig>{}, TilesOf::kNarrow);
}

static_assert(DecodeConfig::N::kLargest == MaxTileRows(GemmVariant::kDecode));
static_assert(MiddleConfig::N::kLargest == MaxTileRows(GemmVariant::kMiddle));
static_assert(WideConfig::N::kLargest == MaxTileRows(GemmVariant::kWide));
static_assert(NarrowConfig::N::kLargest == WideTileRows(GemmVariant::kPrefill));
static_assert(PrefillConfig::N::kLargest == MaxTileRows(GemmVariant::kPrefill));

cudaError_t Multiprocessors(int& count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
}

// Calls start(kernels, tiles, multiprocessors, how) for the kernels of a variant. Those of narrow
// tiles come right after the variant's own wide ones, which do not change the tile list.
template <class Start>
cudaError_t StartKernels(GemmVariant variant, Launch launch, const Start& start) {
  int multiprocessors = 0;
  const cudaError_t error = Multiprocessors(multiprocessors);
  if (error != cudaSuccess) return error;
  return ForKernels(variant, [&](auto kernels, TilesOf tiles) {
    const Launch how = tiles == TilesOf::kNarrow ? Launch::kDependent : launch;
    return start(kernels, tiles, multiprocessors, how);
  });
}

}  // namespace

cudaError_t PrepareGemms() {
  for (const GemmVariant variant : kGemmVariants) {
    const cudaError_t error =
        ForKernels(variant, [](auto kernels, TilesOf) { return decltype(kernels)::Prepare(); });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchGateUp(const GateUpArguments& arguments, GemmVariant variant, Launch launch,
                         cudaStream_t stream) {
  return StartKernels(variant, launch, [&](auto kernels, auto... how) {
    return decltype(kernels)::GateUp(arguments, how..., stream);
  });
}

cudaError_t LaunchDown(const DownArguments& arguments, GemmVariant variant, Launch launch,
                       cudaStream_t stream) {
  return StartKernels(variant, launch, [&](auto kernels, auto... how) {
    return decltype(kernels)::Down(arguments, how..., stream);
  });
}

}  // namespace halfbyte::sm90
