#include "capi/layer_options.h"

#include <memory>

#include "base/thread_pool.h"
#include "capi/versioned_struct.h"
#include "moe/cuda/cuda_expert_layer.h"

namespace halfbyte {
namespace {

constexpr size_t kFirstSize = 40;  // of halfbyte_moe_options in ABI version 1
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxHeadroom = 6;

Result<Arithmetic> ReadArithmetic(const char* name) {
  if (name == nullptr) return Arithmetic::kW4a16;
  if (const std::optional<Arithmetic> arithmetic = ArithmeticFromName(name)) return *arithmetic;
  return MakeError("options.arithmetic: there is no \"{}\"; the default is \"{}\"", name,
                   ArithmeticName(Arithmetic::kW4a16));
}

// What stands in activation_scales and activation_scales_file.
Status ReadScaleSource(const halfbyte_moe_options& given, ActivationScalePolicy& policy) {
  using Source = ActivationScalePolicy::Source;
  constexpr Source kSources[] = {Source::kCheckpointIfComplete, Source::kCheckpoint,
                                 Source::kPerToken};
  if (given.activation_scales < 0 || given.activation_scales >= std::ssize(kSources)) {
    return MakeError("options.activation_scales: {} is none of HALFBYTE_MOE_SCALES_...",
                     given.activation_scales);
  }
  policy.source = kSources[given.activation_scales];
  if (given.activation_scales_file == nullptr) return {};
  if (policy.source != Source::kCheckpointIfComplete) {
    return MakeError(
        "options.activation_scales: a file of scales is given, so this must be "
        "HALFBYTE_MOE_SCALES_AUTO");
  }
  HB_ASSIGN_OR_RETURN(auto measured, ActivationScales::Read(given.activation_scales_file));
  policy.source = Source::kMeasured;
  policy.measured = std::make_shared<const ActivationScales>(std::move(measured));
  return {};
}

Result<ActivationScalePolicy> ReadScalePolicy(const halfbyte_moe_options& given,
                                              Arithmetic arithmetic) {
  ActivationScalePolicy policy;
  if (given.activation_scales_file != nullptr && arithmetic != Arithmetic::kW4a4) {
    return MakeError("options.activation_scales_file: is for \"w4a4\", not \"{}\"",
                     ArithmeticName(arithmetic));
  }
  HB_RETURN_IF_ERROR(ReadScaleSource(given, policy));
  if (given.headroom < HALFBYTE_MOE_HEADROOM_NONE || given.headroom > kMaxHeadroom) {
    return MakeError("options.headroom: {} is outside {}..{}", given.headroom,
                     static_cast<int>(HALFBYTE_MOE_HEADROOM_NONE), kMaxHeadroom);
  }
  if (given.headroom != HALFBYTE_MOE_HEADROOM_DEFAULT)
    policy.headroom = std::max(given.headroom, 0);
  return policy;
}

Result<std::optional<int32_t>> ReadDevice(const halfbyte_moe_options& given) {
  if (given.device != HALFBYTE_MOE_CPU && given.device != HALFBYTE_MOE_CUDA) {
    return MakeError("options.device: {} is none of HALFBYTE_MOE_CPU, HALFBYTE_MOE_CUDA",
                     given.device);
  }
  if (given.device == HALFBYTE_MOE_CPU) return std::nullopt;
  if (const Status usable = CheckGpu(given.device_ordinal); !usable) {
    return MakeError(usable.error().kind, "options.device: {}, or choose HALFBYTE_MOE_CPU",
                     usable.error().message);
  }
  return given.device_ordinal;
}

}  // namespace

Result<ExpertPlacement> LayerOptions::Placement(int64_t experts) const {
  return ExpertPlacement::Balanced(static_cast<int32_t>(experts), ranks, rank);
}

Result<LayerOptions> ReadLayerOptions(const halfbyte_moe_options* options) {
  halfbyte_moe_options given{};
  if (options != nullptr) {
    HB_ASSIGN_OR_RETURN(given, ReadStruct(options, kFirstSize, "options"));
  }
  LayerOptions read;
  HB_ASSIGN_OR_RETURN(read.routed.arithmetic, ReadArithmetic(given.arithmetic));
  if (given.threads < 0 || given.threads > kMaxThreads) {
    return MakeError("options.threads: {} is outside 0..{}", given.threads, kMaxThreads);
  }
  read.threads = given.threads == 0 ? AvailableProcessors() : given.threads;
  read.routed.round_activations = given.keep_fp32 == 0;
  HB_ASSIGN_OR_RETURN(read.routed.activation_scales,
                      ReadScalePolicy(given, read.routed.arithmetic));
  if (given.ranks < 0 || given.rank < 0 || given.rank >= std::max(given.ranks, 1)) {
    return MakeError("options.rank: {} of {} ranks; ranks count from 0", given.rank, given.ranks);
  }
  read.ranks = std::max(given.ranks, 1);
  read.rank = given.rank;
  HB_ASSIGN_OR_RETURN(read.gpu, ReadDevice(given));
  return read;
}

}  // namespace halfbyte
