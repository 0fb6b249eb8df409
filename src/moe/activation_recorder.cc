#include "moe/activation_recorder.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace halfbyte {
namespace {

constexpr int kExponentBias = 127;
// h is rounded to bf16 after the formula that the bound is about.
constexpr float kBf16Slack = 1 + 0x1p-8f;

}  // namespace

void StageMeasurement::AddRow(const float* row, int64_t columns,
                              const std::optional<GlobalScale>& checkpoint) {
  ++rows;
  for (int64_t begin = 0; begin < columns; begin += kNvfp4Block) {
    float block[kNvfp4Block];
    for (int i = 0; i < kNvfp4Block; ++i) {
      block[i] = row[begin + i];
      if (std::isfinite(block[i])) continue;
      ++non_finite;
      block[i] = 0;
    }
    const float largest = BlockAmax(block);
    amax = std::max(amax, largest);
    ++binades[std::bit_cast<uint32_t>(largest) >> 23];
    ++blocks;
    if (checkpoint) QuantizeNvfp4Block(block, *checkpoint, &under_checkpoint);
  }
}

StageMeasurement& StageMeasurement::operator+=(const StageMeasurement& other) {
  rows += other.rows;
  blocks += other.blocks;
  non_finite += other.non_finite;
  amax = std::max(amax, other.amax);
  for (size_t b = 0; b < binades.size(); ++b) binades[b] += other.binades[b];
  under_checkpoint += other.under_checkpoint;
  return *this;
}

double StageMeasurement::BlockAmaxPercentile(double share) const {
  if (blocks == 0) return 0;
  int64_t seen = 0;
  size_t b = 0;
  for (; b + 1 < binades.size(); ++b) {
    seen += binades[b];
    if (static_cast<double>(seen) >= share * static_cast<double>(blocks)) break;
  }
  return std::ldexp(1.0, static_cast<int>(b) - kExponentBias + 1);
}

Result<GlobalScale> StageMeasurement::Scale(std::string_view name) const {
  if (rows == 0) return MakeError("{}: no token reached it; take a longer text", name);
  if (non_finite > 0) {
    return MakeError("{}: {} values are NaN or infinite; no scale can be taken from them", name,
                     non_finite);
  }
  if (amax == 0) {
    return MakeError("{}: all values are zero; no scale can be taken from them", name);
  }
  return GlobalScale::FromAmax(amax);
}

LayerMeasurement& LayerMeasurement::operator+=(const LayerMeasurement& other) {
  gate_up += other.gate_up;
  down += other.down;
  for (size_t e = 0; e < rows_of_expert.size(); ++e) rows_of_expert[e] += other.rows_of_expert[e];
  rows_beyond_clamp += other.rows_beyond_clamp;
  return *this;
}

int64_t LayerMeasurement::experts_without_rows() const {
  return std::count(rows_of_expert.begin(), rows_of_expert.end(), 0);
}

ActivationRecorder::ActivationRecorder(const MoeLayer& layer, const StageScales& checkpoint)
    : layer_(layer), checkpoint_(checkpoint) {
  measurement_.rows_of_expert.resize(static_cast<size_t>(layer.placement().experts()));
}

void ActivationRecorder::OnGateUpInput(const Sample& sample) {
  const ExpertPlacement& placement = layer_.placement();
  const int64_t top_k = sample.routing.top_k();
  for (int64_t t = 0; t < sample.rows.rows; ++t) {
    std::optional<int32_t> first;
    for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
      const int32_t id = sample.routing.topk_ids.data[slot];
      if (id < 0 || id >= placement.experts()) continue;
      if (!first) first = id;
      if (placement.ToLocal(id)) ++measurement_.rows_of_expert[static_cast<size_t>(id)];
    }
    if (first && placement.ToLocal(*first)) {
      measurement_.gate_up.AddRow(sample.rows.row(t), sample.rows.columns, checkpoint_.gate_up);
    }
  }
}

void ActivationRecorder::OnDownInput(const Sample& sample) {
  const MoeParams& params = layer_.params();
  const float limit = params.swiglu.limit;
  const float clamped = limit * (limit + std::abs(params.swiglu.add)) * kBf16Slack;
  const bool weighed = params.routing_weight == RoutingWeightPlacement::kBeforeDown;
  for (int64_t r = 0; r < sample.rows.rows; ++r) {
    const int64_t slot = sample.plan.slot_of_padded_row(r);
    if (slot == DispatchPlan::kNone) continue;
    const float* h = sample.rows.row(r);
    measurement_.down.AddRow(h, sample.rows.columns, checkpoint_.down);
    const float weight = weighed ? std::abs(sample.routing.topk_weights.data[slot]) : 1.0f;
    const float largest = BlockAmax(h, static_cast<int>(sample.rows.columns));
    if (largest > clamped * weight) ++measurement_.rows_beyond_clamp;
  }
}

}  // namespace halfbyte
