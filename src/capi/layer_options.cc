#include "capi/layer_options.h"

#include "base/thread_pool.h"
#include "capi/versioned_struct.h"

namespace halfbyte {
namespace {

constexpr size_t kFirstSize = 40;  // of halfbyte_moe_options
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxHeadroom = 6;

Result<Arithmetic> ReadArithmetic(const char* name) {
  if (name == nullptr) return Arithmetic::kW4a16;
  if (const std::optional<Arithmetic> arithmetic = ArithmeticFromName(name)) return *arithmetic;
  return MakeError("options.arithmetic: there is no \"{}\"; the default is \"{}\"", name,
                   ArithmeticName(Arithmetic::kW4a16));
}

}  // namespace

Result<ExpertPlacement> LayerOptions::Placement(int64_t experts) const {
  return ExpertPlacement::Balanced(static_cast<int32_t>(experts), ranks, rank);
}

Status LayerOptions::SetActivationScales(std::span<const float> gate_up,
                                         std::span<const float> down, std::string_view name,
                                         MoeParams& params) const {
  if (arithmetic != Arithmetic::kW4a4) return {};
  if (activation_scales == HALFBYTE_MOE_SCALES_PER_TOKEN) return {};
  if (gate_up.empty() || down.empty()) {
    if (activation_scales == HALFBYTE_MOE_SCALES_AUTO) return {};
    return MakeError(
        "{}: static activation scales are asked for, but not every expert has an input scale; use "
        "HALFBYTE_MOE_SCALES_PER_TOKEN",
        name);
  }
  HB_ASSIGN_OR_RETURN(params.gate_up_input_scale,
                      StaticActivationScale(gate_up, std::string(name) + " gate_up", headroom));
  HB_ASSIGN_OR_RETURN(params.down_input_scale,
                      StaticActivationScale(down, std::string(name) + " down", headroom));
  return {};
}

Result<LayerOptions> ReadLayerOptions(const halfbyte_moe_options* options) {
  halfbyte_moe_options given{};
  if (options != nullptr) {
    HB_ASSIGN_OR_RETURN(given, ReadStruct(options, kFirstSize, "options"));
  }
  LayerOptions read;
  HB_ASSIGN_OR_RETURN(read.arithmetic, ReadArithmetic(given.arithmetic));
  if (given.threads < 0 || given.threads > kMaxThreads) {
    return MakeError("options.threads: {} is outside 0..{}", given.threads, kMaxThreads);
  }
  read.threads = given.threads == 0 ? AvailableProcessors() : given.threads;
  read.round_activations = given.keep_fp32 == 0;
  if (given.activation_scales < HALFBYTE_MOE_SCALES_AUTO ||
      given.activation_scales > HALFBYTE_MOE_SCALES_PER_TOKEN) {
    return MakeError("options.activation_scales: {} is none of HALFBYTE_MOE_SCALES_...",
                     given.activation_scales);
  }
  read.activation_scales = given.activation_scales;
  if (given.headroom < HALFBYTE_MOE_HEADROOM_NONE || given.headroom > kMaxHeadroom) {
    return MakeError("options.headroom: {} is outside {}..{}", given.headroom,
                     static_cast<int>(HALFBYTE_MOE_HEADROOM_NONE), kMaxHeadroom);
  }
  read.headroom = given.headroom == HALFBYTE_MOE_HEADROOM_DEFAULT ? kDefaultHeadroom
                  : given.headroom == HALFBYTE_MOE_HEADROOM_NONE  ? 0
                                                                  : given.headroom;
  if (given.ranks < 0 || given.rank < 0 || given.rank >= std::max(given.ranks, 1)) {
    return MakeError("options.rank: {} of {} ranks; ranks count from 0", given.rank, given.ranks);
  }
  read.ranks = std::max(given.ranks, 1);
  read.rank = given.rank;
  return read;
}

}  // namespace halfbyte
