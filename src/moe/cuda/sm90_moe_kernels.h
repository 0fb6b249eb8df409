// The experts of a layer on the Hopper family: kernels/sm90_moe.
#pragma once

#include "kernels/sm90_moe/sm90_gemm.h"
#include "moe/cuda/moe_kernels.h"

namespace halfbyte {

class Sm90MoeKernels : public MoeKernels {
 public:
  Status Supports(const MoeParams& params, std::string_view name) const override;
  int64_t ExpertBytes(int64_t hidden, int64_t intermediate) const override;
  cudaError_t Pack(const UploadedExpert& expert, int64_t hidden, int64_t intermediate,
                   uint8_t* packed, cudaStream_t stream) const override;
  int64_t ImageBytes(int64_t rows, int64_t columns) const override;
  cudaError_t Prepare() const override;
  MoeTiling TilingFor(int64_t slots, int64_t experts) const override;
  cudaError_t GateUp(const MoeKernelCall& call, cudaStream_t stream) const override;
  cudaError_t Down(const MoeKernelCall& call, cudaStream_t stream) const override;

 protected:
  // What GateUp and Down are made of; a test puts other products in their place.
  virtual cudaError_t LaunchGateUp(const sm90::GateUpArguments& arguments,
                                   sm90::GemmVariant variant, cudaStream_t stream) const;
  virtual cudaError_t LaunchDown(const sm90::DownArguments& arguments, sm90::GemmVariant variant,
                                 cudaStream_t stream) const;
  // Whether the products' epilogue can requantize h.
  virtual bool epilogue_requantizes() const { return true; }

 private:
  bool GateUpRequantizes(const MoeKernelCall& call) const;
};

}  // namespace halfbyte
