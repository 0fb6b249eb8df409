// The experts of one mixture-of-experts layer on the CPU (moe-layer.md §2, §4):
//
//   rows of each expert -> gate_up -> clamped SwiGLU -> down -> combine in fixed slot order
//
// Each stage's product is sum(x * w) over operands without their global scales, times alpha in
// fp32, alpha = global_scale of the activations * global_scale of the weight, separate for gate and
// up. Experts of four bits, FP8 or bf16 are packed when the layer is made, and
// kernels/packed_linear says how their sums are formed; all others, kRef and layers without
// rounding compute from the stored bytes (kernels/linear).
//
// Arithmetic:
//   kW4a16  activations as given (bf16 values; before packed 4-bit weights numbers below 1/127 of
//           their block's largest lose bits, packed_linear.h), exact weights, fp32 sums. Any weight
//           format.
//   kW4a4   activations quantized to NVFP4 before both stages, as Blackwell tensor cores take them;
//           weights must be NVFP4 or MXFP4.
//   kW4a8   activations quantized to int8, a scale for every 16 of them, before both stages: near
//           kW4a16 at the speed of kW4a4. NVFP4 or MXFP4 weights that can be packed.
//   kRef    as kW4a16 with fp64 sums, scalar: the judge.
// Rounding points: (1) activation quantization in kW4a4 and kW4a8; (2) h, after the routing weight
// if that comes before `down`, is rounded to bf16 (and then quantized); gate, up and slot values
// stay fp32; (3) nothing else: the caller adds the shared expert to the fp32 result and rounds.
// With round_activations = false (2) is left out: fp32 math, the oracle of the model's structure.
//
// A token's result depends on its own row and choices only: not on the other tokens, the number of
// threads, the instruction set, or the workspace's capacity.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/context.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/route/router.h"
#include "moe/expert_products.h"
#include "moe/expert_weights.h"
#include "moe/moe_observer.h"
#include "moe/moe_params.h"
#include "moe/moe_workspace.h"
#include "numerics/global_scale.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {

// The static scale of one stage: the largest of all experts' input_scale, times 2^headroom
// (moe-layer.md §7). Error: an empty list, a scale that is not finite and positive or above
// kLargestInputScale, headroom outside 0..6. `name` says whose scales they are.
inline constexpr int kDefaultHeadroom = 5;
// An input scale is amax / 2688, far below 1. What is above this is no such thing: probably its
// reciprocal, the divisor of another convention (R80).
inline constexpr float kLargestInputScale = 8;
Result<GlobalScale> StaticActivationScale(std::span<const float> input_scales,
                                          std::string_view name, int headroom = kDefaultHeadroom);

// What the activation quantizers of kW4a4 saw.
struct MoeCounters {
  Nvfp4BlockStats gate_up;
  Nvfp4BlockStats down;
};

// How Create packs experts.
struct MoePacking {
  ThreadPool* pool = nullptr;                // null: in the calling thread
  std::function<void(LocalExpert)> release;  // the stored bytes of this expert are needed no more
};

class MoeLayer {
 public:
  // experts[e] for local expert e of the placement. `name` stands in error messages ("layer 3").
  // Errors: a number of experts or shapes that disagree with the parameters; kW4a4 or kW4a8 with
  // another format than NVFP4 or MXFP4; kW4a8 with MXFP4 that cannot be packed; a global scale that
  // is not finite and positive; no memory.
  //
  // Experts are packed (packed_experts.h), if they can be, for kW4a4, kW4a8, and for kW4a16 with
  // rounded activations: then nothing reads the stored bytes after Create. All others are computed
  // from the stored bytes, which must outlive the layer.
  static Result<MoeLayer> Create(const MoeParams& params, ExpertPlacement placement,
                                 std::vector<ExpertWeights> experts, std::string_view name,
                                 const MoePacking& packing = {});

  // hidden [T, hidden] fp32; out [T, hidden], every row is written (zeros if the token has no local
  // expert). Any T; more tokens than the workspace takes are done in pieces. Shapes that disagree
  // abort. Adds to *counters if given.
  void Run(const Context& context, MatrixView<const float> hidden, const Routing& routing,
           MatrixView<float> out, MoeWorkspace& workspace, MoeCounters* counters = nullptr) const;

  // The slot values alone, for an exchange between ranks (expert_exchange.h): row i of `values`
  // [at least as many, hidden] is the i-th slot with a local expert, in slot order. Returns their
  // number. Not more tokens than the workspace takes.
  int64_t RunSlots(const Context& context, MatrixView<const float> hidden, const Routing& routing,
                   MatrixView<float> values, MoeWorkspace& workspace,
                   MoeCounters* counters = nullptr) const;

  // Every token through expert 0 with weight 1: the shared expert, by the same rules (R69).
  void RunDense(const Context& context, MatrixView<const float> hidden, MatrixView<float> out,
                MoeWorkspace& workspace, MoeCounters* counters = nullptr) const;

  // Shows every later Run's activations to the observer, until null is set. It must outlive them,
  // and they must not run side by side.
  void set_observer(MoeObserver* observer) { observer_ = observer; }
  bool observed() const { return observer_ != nullptr; }

  const MoeParams& params() const { return params_; }
  const ExpertPlacement& placement() const { return placement_; }
  int64_t weight_bytes() const { return weight_bytes_; }  // as stored
  const ExpertProducts& products() const { return *products_; }

 private:
  // One piece of tokens on its way through the layer; the steps below run in this order.
  struct Block {
    const Context& context;
    MatrixView<const float> hidden;
    Routing routing;
    MatrixView<float> out;
    MoeWorkspace& workspace;
    MoeCounters* counters;
  };

  MoeLayer(const MoeParams& params, ExpertPlacement placement, int64_t weight_bytes)
      : params_(params), placement_(std::move(placement)), weight_bytes_(weight_bytes) {}

  void CheckCall(MatrixView<const float> hidden, const Routing& routing,
                 const MoeWorkspace& workspace) const;
  void ComputeSlots(const Block& block) const;  // all steps but the last
  void PrepareTokens(const Block& block) const;
  void GateUp(const Block& block) const;
  void PrepareH(const Block& block) const;
  void Down(const Block& block) const;
  void Combine(const Block& block) const;

  MoeParams params_;
  ExpertPlacement placement_;
  int64_t weight_bytes_;
  std::unique_ptr<const ExpertProducts> products_;
  MoeObserver* observer_ = nullptr;
};

}  // namespace halfbyte
