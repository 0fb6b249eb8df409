// From the arguments of sm90_gemm.h to a launch of one kernel.
#pragma once

#include "device/cuda/launch.cuh"
#include "kernels/sm90_moe/sm90_gemm_kernel.cuh"

namespace halfbyte::sm90 {

// A variant's two kernels. One source file instantiates it.
template <class Config>
struct GemmKernels {
  static cudaError_t Prepare() {
    const cudaError_t error = AllowShared(GemmKernel<Config, GateUpEpilogue>);
    return error != cudaSuccess ? error : AllowShared(GemmKernel<Config, DownEpilogue>);
  }

  static cudaError_t GateUp(const GateUpArguments& a, TilesOf tiles_of, int multiprocessors,
                            Launch launch, cudaStream_t stream) {
    const PackedShape shape = a.gemm.shape.gate_up();
    const GateUpEpilogue::Arguments out{a.alpha_gate,
                                        a.alpha_up,
                                        a.gemm.row_scale,
                                        a.row_weight,
                                        a.limit,
                                        a.swiglu_alpha,
                                        a.swiglu_add,
                                        a.h_image,
                                        PaddedK(a.gemm.shape.intermediate) * 2,
                                        static_cast<int>(shape.strips),
                                        static_cast<int>(shape.strips / 2),
                                        a.quantizer.static_scale != 0,
                                        BlockScaler(GlobalScale(a.quantizer.static_scale)),
                                        a.quantizer.slot_of_row,
                                        a.quantizer.stats,
                                        a.gemm.shape.intermediate};
    return Start(GemmKernel<Config, GateUpEpilogue>, Operands(a.gemm, shape, 0, a.image, tiles_of),
                 out, multiprocessors, launch, stream);
  }

  static cudaError_t Down(const DownArguments& a, TilesOf tiles_of, int multiprocessors,
                          Launch launch, cudaStream_t stream) {
    const ExpertShape& expert = a.gemm.shape;
    const DownEpilogue::Arguments out{a.alpha, a.gemm.row_scale, a.slot_values, expert.hidden};
    return Start(GemmKernel<Config, DownEpilogue>,
                 Operands(a.gemm, expert.down(), expert.down_offset(), a.image, tiles_of), out,
                 multiprocessors, launch, stream);
  }

 private:
  template <class Out>
  static cudaError_t AllowShared(void (*kernel)(GemmOperands, Out)) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Config::kSharedBytes);
  }

  static GemmOperands Operands(const GemmArguments& gemm, const PackedShape& shape, int64_t offset,
                               const uint8_t* image, TilesOf tiles_of) {
    return {gemm.experts + offset,
            gemm.shape.bytes(),
            static_cast<int>(shape.strips),
            static_cast<int>(shape.k_blocks()),
            image,
            gemm.tiles,
            gemm.tile_count,
            tiles_of};
  }

  template <class Out>
  static cudaError_t Start(void (*kernel)(GemmOperands, Out), const GemmOperands& operands,
                           const Out& out, int multiprocessors, Launch launch,
                           cudaStream_t stream) {
    const LaunchShape shape{dim3(static_cast<unsigned>(multiprocessors)), dim3(Config::kThreads),
                            Config::kSharedBytes};
    return launch == Launch::kDependent ? LaunchDependent(kernel, shape, stream, operands, out)
                                        : LaunchKernel(kernel, shape, stream, operands, out);
  }
};

// The configurations of the variants (hopper-moe.md measured W and stages: 256-row tiles stream
// best, 192-row tiles multiply best). With more widths in one kernel ptxas runs out of registers
// and puts wgmma instructions in series (note C7512); nothing but its notes tells.
using DecodeConfig = GemmConfig<4, 2, Raster::kRuns, Widths<8, 16, 32>>;
using MiddleConfig = GemmConfig<4, 2, Raster::kInterleaved, Widths<48, 64>>;
using WideConfig = GemmConfig<3, 1, Raster::kInterleaved, Widths<96, 128>>;
// What experts with 193..224 rows are cut into.
using NarrowConfig = GemmConfig<3, 1, Raster::kInterleaved, Widths<104, 112>>;
using PrefillConfig = GemmConfig<3, 1, Raster::kInterleaved, Widths<192>>;

extern template struct GemmKernels<DecodeConfig>;
extern template struct GemmKernels<MiddleConfig>;
extern template struct GemmKernels<WideConfig>;
extern template struct GemmKernels<NarrowConfig>;
extern template struct GemmKernels<PrefillConfig>;

}  // namespace halfbyte::sm90
