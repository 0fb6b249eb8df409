#include "moe/moe_layer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/combine/combine_slots.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4.h"
#include "moe/packed_products.h"
#include "moe/stored_products.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// Multiply-adds that outweigh the start of a piece of a parallel loop.
constexpr int64_t kMinPiece = 65536;
// Long pieces read memory faster, short ones let threads end together: so a piece is this part of
// what is left for each thread, down to that part of all its work.
constexpr int64_t kPartOfTheRest = 4;
constexpr int64_t kLeastPart = 64;
// Output channels of a piece are a multiple of a block, so that register tiles stay whole.
constexpr int64_t kChannelStep = 16;

// Runs body(task) for pieces of `channels` output channels of every expert that has rows.
// `row_work` is the multiply-adds of one channel for one row.
template <class Body>
void ForEachPiece(const Context& context, MoeWorkspace& workspace, int64_t channels,
                  int64_t row_work, const Body& body) {
  const ExpertOffsets& offsets = workspace.plan.offsets();
  const int64_t work = offsets.rows() * channels * row_work;
  const int64_t threads = context.pool().threads();
  const int64_t least = std::max(kMinPiece, work / (kLeastPart * threads));
  int64_t left = work;
  workspace.tasks.clear();
  for (int32_t i = 0; i < offsets.experts(); ++i) {
    const LocalExpert e{i};
    if (offsets.count(e) == 0) continue;
    const int64_t channel_work = std::max<int64_t>(1, offsets.count(e) * row_work);
    for (int64_t begin = 0, end; begin < channels; begin = end) {
      const int64_t piece = std::max(least, left / (kPartOfTheRest * threads));
      const int64_t step = RoundUp(std::max<int64_t>(1, piece / channel_work), kChannelStep);
      end = begin + step + step / 2 < channels ? begin + step : channels;  // no crumbs
      workspace.tasks.push_back({e, begin, end});
      left -= (end - begin) * channel_work;
    }
  }
  const auto tasks = static_cast<int64_t>(workspace.tasks.size());
  // Tiny layers stay in the calling thread.
  const int64_t grain = work <= kMinPiece ? tasks : 1;
  context.pool().ParallelFor(tasks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(workspace.tasks[static_cast<size_t>(i)]);
  });
}

// Quantizes x to workspace.codes, .block_scales and .quantized_scales (global, by row).
void Quantize(const Context& context, MatrixView<const float> x,
              const std::optional<GlobalScale>& static_scale, MoeWorkspace& workspace,
              Nvfp4BlockStats* stats) {
  const Nvfp4Output codes{workspace.codes.get(), workspace.block_scales.get()};
  Result<Nvfp4BlockStats> seen;
  if (static_scale) {
    seen = QuantizeNvfp4(context, FloatRows::Of(x), *static_scale, Nvfp4Rule::kAmaxTo6, codes);
    std::fill_n(workspace.quantized_scales.begin(), x.rows, *static_scale);
  } else {
    seen = QuantizeNvfp4PerRow(context, FloatRows::Of(x), Nvfp4Rule::kAmaxTo6, codes,
                               workspace.quantized_scales.data());
  }
  HB_CHECK(seen.has_value(), "{}", seen.error().message);
  if (stats != nullptr) *stats += *seen;
}

Status CheckWeight(const WeightMatrix& w, int64_t rows, int64_t columns, Arithmetic arithmetic,
                   std::string_view name, GlobalExpert global, std::string_view part) {
  const int32_t expert = Index(global);
  if (w.rows != rows || w.columns != columns) {
    return MakeError("{}, expert {}, {}: shape [{}, {}] where the configuration wants [{}, {}]",
                     name, expert, part, w.rows, w.columns, rows, columns);
  }
  const bool four_bit = w.format == WeightFormat::kNvfp4 || w.format == WeightFormat::kMxfp4;
  if (IsFourBitOnly(arithmetic) && !four_bit) {
    return MakeError(
        "{}, expert {}, {}: {} arithmetic needs NVFP4 or MXFP4 weights, but these "
        "are {}; use w4a16, or convert the checkpoint to NVFP4",
        name, expert, part, ArithmeticName(arithmetic), WeightFormatName(w.format));
  }
  if (w.format == WeightFormat::kNvfp4 && !w.global_scale.IsUsable()) {
    return MakeError("{}, expert {}, {}: global scale {} is not finite and positive", name, expert,
                     part, w.global_scale.value());
  }
  return {};
}

}  // namespace

Result<GlobalScale> StaticActivationScale(std::span<const float> input_scales,
                                          std::string_view name, int headroom) {
  if (headroom < 0 || headroom > 6) {
    return MakeError("{}: headroom {} is outside 0..6", name, headroom);
  }
  if (input_scales.empty()) return MakeError("{}: no expert has an input scale", name);
  float largest = 0;
  for (size_t e = 0; e < input_scales.size(); ++e) {
    if (!GlobalScale(input_scales[e]).IsUsable()) {
      return MakeError("{}: input scale {} of expert {} is not finite and positive", name,
                       input_scales[e], e);
    }
    if (input_scales[e] > kLargestInputScale) {
      return MakeError("{}: input scale {} of expert {} is no amax / 2688; is it the reciprocal?",
                       name, input_scales[e], e);
    }
    largest = std::max(largest, input_scales[e]);
  }
  const GlobalScale scale(std::ldexp(largest, headroom));
  if (!scale.IsUsable()) return MakeError("{}: input scale {} is too large", name, largest);
  return scale;
}

Result<MoeLayer> MoeLayer::Create(const MoeParams& params, ExpertPlacement placement,
                                  std::vector<ExpertWeights> experts, std::string_view name,
                                  const MoePacking& packing) {
  if (static_cast<int64_t>(experts.size()) != placement.local_experts()) {
    return MakeError("{}: weights of {} experts where {} belong here", name, experts.size(),
                     placement.local_experts());
  }
  for (const std::optional<GlobalScale>& scale :
       {params.gate_up_input_scale, params.down_input_scale}) {
    if (scale && !scale->IsUsable()) {
      return MakeError("{}: activation scale {} is not finite and positive", name, scale->value());
    }
  }
  for (size_t e = 0; e < experts.size(); ++e) {
    const auto check = [&](const WeightMatrix& w, int64_t rows, int64_t columns,
                           std::string_view part) {
      const LocalExpert local{static_cast<int32_t>(e)};
      return CheckWeight(w, rows, columns, params.arithmetic, name, placement.ToGlobal(local),
                         part);
    };
    HB_RETURN_IF_ERROR(check(experts[e].gate, params.intermediate, params.hidden, "gate"));
    HB_RETURN_IF_ERROR(check(experts[e].up, params.intermediate, params.hidden, "up"));
    HB_RETURN_IF_ERROR(check(experts[e].down, params.hidden, params.intermediate, "down"));
  }
  int64_t weight_bytes = 0;
  for (const ExpertWeights& e : experts) {
    weight_bytes += e.gate.bytes() + e.up.bytes() + e.down.bytes();
  }
  MoeLayer layer(params, std::move(placement), weight_bytes);
  std::optional<PackedExperts> packed;
  if (IsFourBitOnly(params.arithmetic) ||
      (params.arithmetic == Arithmetic::kW4a16 && params.round_activations)) {
    ThreadPool caller(1);
    HB_ASSIGN_OR_RETURN(
        packed, PackedExperts::Pack(packing.pool != nullptr ? *packing.pool : caller, experts,
                                    layer.placement_, packing.release, name));
  }
  if (packed) {
    layer.products_ = std::make_unique<PackedProducts>(*std::move(packed), params.arithmetic);
  } else if (params.arithmetic == Arithmetic::kW4a8) {
    return MakeError("{}: MXFP4 scales of one matrix span more than w4a8 takes; use w4a16", name);
  } else {
    layer.products_ =
        std::make_unique<StoredProducts>(std::move(experts), params.arithmetic == Arithmetic::kRef);
  }
  return layer;
}

void MoeLayer::CheckCall(MatrixView<const float> hidden, const Routing& routing,
                         const MoeWorkspace& workspace) const {
  const MoeLimits& limits = workspace.limits;
  HB_CHECK(hidden.columns == params_.hidden && routing.tokens() == hidden.rows &&
               routing.topk_weights.rows == hidden.rows &&
               routing.topk_weights.columns == routing.top_k(),
           "hidden [{}, {}], routing [{}, {}] for hidden size {}", hidden.rows, hidden.columns,
           routing.tokens(), routing.top_k(), params_.hidden);
  HB_CHECK(limits.tokens >= 1 && routing.top_k() <= limits.top_k &&
               placement_.local_experts() <= limits.experts && params_.hidden <= limits.hidden &&
               params_.intermediate <= limits.intermediate,
           "workspace for top_k {}, {} experts, [{}, {}]", limits.top_k, limits.experts,
           limits.hidden, limits.intermediate);
}

void MoeLayer::Run(const Context& context, MatrixView<const float> hidden, const Routing& routing,
                   MatrixView<float> out, MoeWorkspace& workspace, MoeCounters* counters) const {
  CheckCall(hidden, routing, workspace);
  HB_CHECK(out.rows == hidden.rows && out.columns == params_.hidden,
           "out [{}, {}] for {} tokens of hidden size {}", out.rows, out.columns, hidden.rows,
           params_.hidden);
  const MoeLimits& limits = workspace.limits;
  for (int64_t t = 0; t < hidden.rows; t += limits.tokens) {
    const int64_t count = std::min(limits.tokens, hidden.rows - t);
    const Block block{
        context, hidden.Rows(t, count), routing.Rows(t, count), out.Rows(t, count), workspace,
        counters};
    ComputeSlots(block);
    Combine(block);
  }
}

void MoeLayer::RunDense(const Context& context, MatrixView<const float> hidden,
                        MatrixView<float> out, MoeWorkspace& workspace,
                        MoeCounters* counters) const {
  const int64_t tokens = workspace.limits.tokens;
  HB_CHECK(tokens >= 1, "workspace for {} tokens", tokens);
  for (int64_t t = 0; t < hidden.rows; t += tokens) {
    const int64_t count = std::min(tokens, hidden.rows - t);
    const Routing everybody{{workspace.dense_ids.data(), count, 1},
                            {workspace.dense_weights.data(), count, 1}};
    Run(context, hidden.Rows(t, count), everybody, out.Rows(t, count), workspace, counters);
  }
}

int64_t MoeLayer::RunSlots(const Context& context, MatrixView<const float> hidden,
                           const Routing& routing, MatrixView<float> values,
                           MoeWorkspace& workspace, MoeCounters* counters) const {
  CheckCall(hidden, routing, workspace);
  HB_CHECK(hidden.rows <= workspace.limits.tokens && values.columns == params_.hidden,
           "{} tokens of at most {}, values of width {} for hidden size {}", hidden.rows,
           workspace.limits.tokens, values.columns, params_.hidden);
  ComputeSlots({context, hidden, routing, /*out=*/{}, workspace, counters});
  const DispatchPlan& plan = workspace.plan;
  int64_t local = 0;
  for (int64_t slot = 0; slot < plan.slots(); ++slot) {
    const int64_t row = plan.padded_row_of_slot(slot);
    if (row == DispatchPlan::kNone) continue;
    HB_CHECK(local < values.rows, "more local slots than the {} rows for them", values.rows);
    std::copy_n(workspace.rows.get() + row * params_.hidden, params_.hidden, values.row(local++));
  }
  return local;
}

void MoeLayer::ComputeSlots(const Block& block) const {
  const Status planned = block.workspace.plan.Build(placement_, block.routing.topk_ids);
  HB_CHECK(planned.has_value(), "{}", planned.error().message);
  const DispatchPlan& plan = block.workspace.plan;
  if (observer_ != nullptr) observer_->OnGateUpInput({block.hidden, block.routing, plan});
  PrepareTokens(block);
  GateUp(block);
  if (observer_ != nullptr) {
    const MatrixView<const float> h{block.workspace.gate.get(), plan.offsets().padded_rows(),
                                    params_.intermediate};
    observer_->OnDownInput({h, block.routing, plan});
  }
  PrepareH(block);
  Down(block);
}

void MoeLayer::PrepareTokens(const Block& block) const {
  const bool quantized = params_.arithmetic == Arithmetic::kW4a4;
  if (quantized) {
    Quantize(block.context, block.hidden, params_.gate_up_input_scale, block.workspace,
             block.counters ? &block.counters->gate_up : nullptr);
  }
  products_->PrepareTokens(block.context, block.hidden, block.routing.top_k(), quantized,
                           block.workspace);
}

// gate = h: both products and the activation, a range of channels at a time.
void MoeLayer::GateUp(const Block& block) const {
  MoeWorkspace& ws = block.workspace;
  const ExpertOffsets& offsets = ws.plan.offsets();
  const int64_t width = params_.intermediate;
  const bool weigh = params_.routing_weight == RoutingWeightPlacement::kBeforeDown;
  ForEachPiece(block.context, ws, width, 2 * params_.hidden, [&](const MoeWorkspace::Task& task) {
    const int64_t first = offsets.begin(task.expert);
    const int64_t count = offsets.count(task.expert);
    const MatrixView<float> gate{ws.gate.get() + first * width, count, width};
    const MatrixView<float> up{ws.up.get() + first * width, count, width};
    products_->Multiply(block.context, ExpertMatrix::kGate, task, ws, gate);
    products_->Multiply(block.context, ExpertMatrix::kUp, task, ws, up);
    const float gate_scale = products_->global_scale(ExpertMatrix::kGate, task.expert);
    const float up_scale = products_->global_scale(ExpertMatrix::kUp, task.expert);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t slot = ws.plan.slot_of_padded_row(first + r);
      const float scale = ws.row_scales[static_cast<size_t>(first + r)];
      SwigluRow(block.context, params_.swiglu,
                {.gate = gate.row(r) + task.begin,
                 .up = up.row(r) + task.begin,
                 .h = gate.row(r) + task.begin,
                 .n = task.end - task.begin,
                 .alpha_gate = scale * gate_scale,
                 .alpha_up = scale * up_scale,
                 .weight = weigh ? block.routing.topk_weights.data[slot] : 1.0f,
                 .rounding = params_.round_activations ? Rounding::kBf16 : Rounding::kNone});
    }
  });
}

void MoeLayer::PrepareH(const Block& block) const {
  const bool quantized = params_.arithmetic == Arithmetic::kW4a4;
  const MatrixView<float> h{block.workspace.gate.get(),
                            block.workspace.plan.offsets().padded_rows(), params_.intermediate};
  if (quantized) {
    Quantize(block.context, h, params_.down_input_scale, block.workspace,
             block.counters ? &block.counters->down : nullptr);
  }
  products_->PrepareH(block.context, h, quantized, block.workspace);
}

// rows = slot values.
void MoeLayer::Down(const Block& block) const {
  MoeWorkspace& ws = block.workspace;
  const ExpertOffsets& offsets = ws.plan.offsets();
  const int64_t width = params_.hidden;
  ForEachPiece(block.context, ws, width, params_.intermediate, [&](const MoeWorkspace::Task& task) {
    const float scale = products_->global_scale(ExpertMatrix::kDown, task.expert);
    const int64_t first = offsets.begin(task.expert);
    const int64_t count = offsets.count(task.expert);
    const MatrixView<float> values{ws.rows.get() + first * width, count, width};
    products_->Multiply(block.context, ExpertMatrix::kDown, task, ws, values);
    for (int64_t r = 0; r < count; ++r) {
      const float alpha = ws.row_scales[static_cast<size_t>(first + r)] * scale;
      for (int64_t n = task.begin; n < task.end; ++n) values.row(r)[n] *= alpha;
    }
  });
}

void MoeLayer::Combine(const Block& block) const {
  const MoeWorkspace& ws = block.workspace;
  CombineSlots(
      block.context, block.routing, CombineRuleOf(params_),
      [&](int64_t slot) -> const float* {
        const int64_t row = ws.plan.padded_row_of_slot(slot);
        return row == DispatchPlan::kNone ? nullptr : ws.rows.get() + row * params_.hidden;
      },
      block.out);
}

}  // namespace halfbyte
