#include <algorithm>
#include <set>

#include "cases/numeric_cases.h"
#include "device/context.h"
#include "kernels/dispatch_plan/dispatch_plan.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/linear/linear.h"
#include "kernels/route/router.h"
#include "kernels/swiglu/swiglu.h"
#include "moe/moe_layer.h"
#include "numerics/nvfp4_block.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

LocalExpert Local(size_t e) { return LocalExpert{static_cast<int32_t>(e)}; }

void PaddedExpertOffsets(const Json& inputs, const Json& expected) {
  const std::vector<int64_t> counts = IntsOf(inputs["counts"]);
  const ExpertOffsets offsets(counts, inputs["row_tile"].get<int64_t>());
  for (size_t e = 0; e < counts.size(); ++e) {
    EXPECT_EQ(offsets.begin(Local(e)), expected["begin"][e].get<int64_t>());
    EXPECT_EQ(offsets.padded_end(Local(e)), expected["end"][e].get<int64_t>());
    EXPECT_EQ(offsets.count(Local(e)), counts[e]);
  }
  EXPECT_EQ(offsets.rows(), expected["rows"].get<int64_t>());
  EXPECT_EQ(offsets.padded_rows(), expected["padded_rows"].get<int64_t>());
}

void GroupedScaleOffset(const Json& inputs, const Json& expected) {
  const ExpertOffsets offsets(IntsOf(inputs["counts"]), TiledScales::kTileRows);
  const TiledScales all{offsets.padded_rows(), inputs["scale_cols"].get<int64_t>()};
  const int64_t begin = offsets.begin(Local(inputs["expert"].get<size_t>()));
  const int64_t row = inputs["row"].get<int64_t>();
  const int64_t block = inputs["col"].get<int64_t>();
  EXPECT_EQ(begin + row, expected["padded_row"].get<int64_t>());
  EXPECT_EQ(all.offset(begin, 0), expected["expert_base"].get<int64_t>());
  EXPECT_EQ(all.offset(begin + row, block), expected["offset"].get<int64_t>());
  // From the expert's own base the same place.
  EXPECT_EQ(all.offset(begin, 0) + all.offset(row, block), expected["offset"].get<int64_t>());
}

void PaddedRowsBoundCase(const Json& inputs, const Json& expected) {
  const int64_t slots = inputs["tokens"].get<int64_t>() * inputs["top_k"].get<int64_t>();
  const int64_t bound = PaddedRowsBound(slots, inputs["local_experts"].get<int64_t>(),
                                        inputs["row_tile"].get<int64_t>());
  EXPECT_EQ(bound, expected["worst_case_rows"].get<int64_t>());
  EXPECT_LE(bound, expected["safe_bound_rows"].get<int64_t>());
}

// One expert that multiplies the first hidden element by `factor`: silu(1) * x, divided again.
struct ScalingExpert {
  static constexpr int64_t kSize = 16;
  std::vector<float> one = std::vector<float>(kSize * kSize);
  std::vector<float> out = std::vector<float>(kSize * kSize);

  explicit ScalingExpert(float factor) {
    one[0] = 1;
    out[0] = factor * (1 + std::exp(-1.0f));
  }
  static WeightMatrix View(const std::vector<float>& values) {
    return {.format = WeightFormat::kF32,
            .rows = kSize,
            .columns = kSize,
            .data = reinterpret_cast<const std::byte*>(values.data())};
  }
  ExpertWeights weights() const { return {View(one), View(one), View(out)}; }
};

void Dispatch(const Json& inputs, const Json& expected) {
  const auto experts = inputs["experts"].get<int32_t>();
  const auto tokens = static_cast<int64_t>(inputs["ids"].size());
  const auto top_k = static_cast<int64_t>(inputs["ids"][0].size());
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (size_t t = 0; t < inputs["ids"].size(); ++t) {
    for (const Json& id : inputs["ids"][t]) ids.push_back(id.get<int32_t>());
    for (const Json& weight : inputs["weights"][t]) weights.push_back(FloatOf(weight));
  }
  const ExpertPlacement placement = ExpertPlacement::Single(experts);
  DispatchPlan plan(tokens * top_k, experts, kCpuRowAlignment);
  ASSERT_TRUE(plan.Build(placement, {ids.data(), tokens, top_k}).has_value());
  std::vector<std::vector<int64_t>> rows;
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    EXPECT_EQ(plan.offsets().count(Local(e)), expected["counts"][e].get<int64_t>());
    for (int64_t row = plan.offsets().begin(Local(e)); row < plan.offsets().end(Local(e)); ++row) {
      const int64_t slot = plan.slot_of_padded_row(row);
      rows.push_back({static_cast<int64_t>(e), slot / top_k, slot % top_k});
    }
  }
  EXPECT_EQ(rows, expected["rows"].get<std::vector<std::vector<int64_t>>>());

  // The whole layer with experts of 10^e. Every token is a one.
  std::vector<ScalingExpert> storage;
  for (int e = 0; e < experts; ++e) storage.emplace_back(std::pow(10.0f, static_cast<float>(e)));
  std::vector<ExpertWeights> views;
  for (const ScalingExpert& expert : storage) views.push_back(expert.weights());
  constexpr int64_t kSize = ScalingExpert::kSize;
  MoeParams params{.hidden = kSize, .intermediate = kSize};
  params.round_activations = false;
  const auto layer = MoeLayer::Create(params, placement, views, "dispatch");
  ASSERT_TRUE(layer.has_value()) << layer.error().message;
  MoeWorkspace workspace({tokens, top_k, experts, kSize, kSize});
  std::vector<float> hidden(static_cast<size_t>(tokens * kSize));
  for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) hidden[t * kSize] = 1;
  std::vector<float> out(hidden.size(), -1.0f);
  layer->Run(Context(Pool()), {hidden.data(), tokens, kSize},
             Routing{{ids.data(), tokens, top_k}, {weights.data(), tokens, top_k}},
             {out.data(), tokens, kSize}, workspace);
  for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
    ExpectRelative(out[t * kSize], NumberOf(expected["output_factor"][t]), 1e-6);
    for (size_t i = 1; i < kSize; ++i) EXPECT_EQ(out[t * kSize + i], 0);
  }
}

void PlacementBalanced(const Json& inputs, const Json& expected) {
  const auto experts = inputs["experts"].get<int32_t>();
  const auto ranks = inputs["ranks"].get<int32_t>();
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const auto placement = ExpertPlacement::Balanced(experts, ranks, rank);
    ASSERT_TRUE(placement.has_value());
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(placement->local_experts(), expected["counts"][r].get<int32_t>());
    EXPECT_EQ(Index(placement->ToGlobal(LocalExpert{0})), expected["starts"][r].get<int32_t>());
    for (const Json& owner : expected["owner"]) {
      const auto id = owner[0].get<int32_t>();
      EXPECT_EQ(placement->owner(GlobalExpert{id}), owner[1].get<int32_t>());
      EXPECT_EQ(placement->ToLocal(id).has_value(), owner[1] == rank);
    }
  }
}

void LocalInputScales(const Json& inputs, const Json& expected) {
  const std::vector<float> scales = FloatsOf(inputs["scales"]);
  const auto placement =
      ExpertPlacement::Balanced(static_cast<int32_t>(scales.size()), inputs["ranks"].get<int32_t>(),
                                inputs["rank"].get<int32_t>());
  ASSERT_TRUE(placement.has_value());
  const auto local = placement->LocalPart(scales);
  ASSERT_TRUE(local.has_value());
  EXPECT_EQ(*local, FloatsOf(expected["local"]));
}

void RankRows(const Json& inputs, const Json& expected) {
  const auto ranks = inputs["ranks"].get<int32_t>();
  const auto top_k = inputs["top_k"].get<int64_t>();
  const int64_t tokens = ranks * inputs["tokens_per_rank"].get<int64_t>();
  const auto busy = inputs["all_choices_on_rank"].get<int32_t>();
  const auto per_rank = static_cast<int32_t>(top_k);  // as many experts: each token takes them all
  std::vector<int32_t> ids;
  for (int64_t slot = 0; slot < tokens * top_k; ++slot) {
    ids.push_back(busy * per_rank + static_cast<int32_t>(slot % top_k));
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const auto placement = ExpertPlacement::Balanced(ranks * per_rank, ranks, rank);
    ASSERT_TRUE(placement.has_value());
    DispatchPlan plan(tokens * top_k, per_rank, kCpuRowAlignment);
    ASSERT_TRUE(plan.Build(*placement, {ids.data(), tokens, top_k}).has_value());
    std::set<int64_t> here;
    for (int64_t slot = 0; slot < tokens * top_k; ++slot) {
      if (plan.padded_row_of_slot(slot) != DispatchPlan::kNone) here.insert(slot / top_k);
    }
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(static_cast<int64_t>(here.size()), expected["tokens"][r].get<int64_t>());
    EXPECT_EQ(plan.offsets().rows(), expected["rows"][r].get<int64_t>());
  }
}

void RowElementOffsetCase(const Json& inputs, const Json& expected) {
  const int64_t elements =
      RowElementOffset(inputs["tokens"].get<int64_t>(), inputs["top_k"].get<int64_t>(),
                       inputs["hidden"].get<int64_t>());
  EXPECT_EQ(elements, expected["elements"].get<int64_t>());
  EXPECT_EQ(elements <= std::numeric_limits<int32_t>::max(), expected["fits_int32"].get<bool>());
}

void SwigluClamped(const Json& inputs, const Json& expected) {
  SwigluParams params;
  if (!inputs["limit"].is_null()) params.limit = FloatOf(inputs["limit"]);
  const float gate = FloatOf(inputs["gate"]);
  const float up = FloatOf(inputs["up"]);
  for (const CpuIsa isa : SupportedCpuIsas()) {
    float h = -1;
    SwigluRow(Context(Pool(), isa), params, {.gate = &gate, .up = &up, .h = &h, .n = 1});
    ExpectRelative(h, NumberOf(expected["value"]), 1e-5);
  }
}

void RouterSqrtSoftplus(const Json& inputs, const Json& expected) {
  const std::vector<float> logits = FloatsOf(inputs["logits"]);
  const std::vector<float> bias = FloatsOf(inputs["bias"]);
  const auto experts = static_cast<int64_t>(logits.size());
  const auto top_k = inputs["top_k"].get<int64_t>();
  RouterParams params{.experts = experts, .top_k = top_k};
  params.routed_scaling_factor = FloatOf(inputs["scale"]);
  std::vector<int32_t> ids(static_cast<size_t>(top_k), -7);
  std::vector<float> weights(static_cast<size_t>(top_k), -7);
  const RouterCounters counters =
      Route(Context(Pool()), params, {logits.data(), 1, experts}, bias,
            MutableRouting{{ids.data(), 1, top_k}, {weights.data(), 1, top_k}});
  const bool bad = std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  EXPECT_EQ(counters.bad_rows, bad ? 1 : 0);
  const std::set<int32_t> chosen(ids.begin(), ids.end());
  EXPECT_EQ(chosen.size(), ids.size());
  EXPECT_GE(*chosen.begin(), 0);
  EXPECT_LT(*chosen.rbegin(), experts);
  if (expected["ids"].is_string()) {  // "any 2 distinct in 0..7"
    EXPECT_EQ(weights, FloatsOf(expected["weights"]));
    return;
  }
  for (size_t j = 0; j < expected["ids"].size(); ++j) {
    const auto place = std::find(ids.begin(), ids.end(), expected["ids"][j].get<int32_t>());
    ASSERT_NE(place, ids.end());
    ExpectRelative(weights[static_cast<size_t>(place - ids.begin())],
                   NumberOf(expected["weights"][j]), 1e-5);
  }
}

// sum_k a[k] * b[k] with b as an NVFP4 weight, by every variant of the linear kernel.
void ExpectDot(const std::vector<float>& a, const std::vector<float>& b,
               const std::vector<float>& block_scales, float expected) {
  const auto k = static_cast<int64_t>(a.size());
  // Exactly as large as the row: reading on is a fault that the address sanitizer sees.
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < b.size(); i += 2) {
    codes.push_back(PackE2m1(E2m1FromFloat(b[i]), E2m1FromFloat(b[i + 1])));
  }
  std::vector<uint8_t> scales;
  for (const float scale : block_scales) scales.push_back(E4m3FromFloat(scale));
  const WeightMatrix weight{.format = WeightFormat::kNvfp4,
                            .rows = 1,
                            .columns = k,
                            .data = reinterpret_cast<const std::byte*>(codes.data()),
                            .scales = reinterpret_cast<const std::byte*>(scales.data())};
  for (const CpuIsa isa : SupportedCpuIsas()) {
    float y = -1;
    Linear(Context(Pool(), isa), {a.data(), 1, k}, weight, {&y, 1, 1});
    EXPECT_EQ(y, expected) << CpuIsaName(isa);
  }
}

void BlockedDot(const Json& inputs, const Json& expected) {
  const std::vector<float> a = FloatsOf(inputs["a"]);
  const std::vector<float> b = FloatsOf(inputs["b"]);
  const std::vector<float> scales = FloatsOf(inputs["block_scales"]);
  ExpectDot(a, b, scales, FloatOf(expected["value"]));
  for (size_t block = 0; block < scales.size(); ++block) {
    const auto begin = static_cast<int64_t>(block) * kNvfp4Block;
    const std::vector<float> part_a(a.begin() + begin, a.begin() + begin + kNvfp4Block);
    const std::vector<float> part_b(b.begin() + begin, b.begin() + begin + kNvfp4Block);
    ExpectDot(part_a, part_b, {1}, FloatOf(expected["block_dots"][block]));
  }
}

void OnesDot(const Json& inputs, const Json& expected) {
  const std::vector<float> ones(inputs["k"].get<size_t>(), 1.0f);
  ExpectDot(ones, ones, std::vector<float>(ones.size() / kNvfp4Block, 1.0f),
            FloatOf(expected["value"]));
}

}  // namespace

void AddMoeCases(CaseHandlers& handlers) {
  handlers["padded_expert_offsets"] = PaddedExpertOffsets;
  handlers["grouped_scale_offset"] = GroupedScaleOffset;
  handlers["padded_rows_bound"] = PaddedRowsBoundCase;
  handlers["dispatch"] = Dispatch;
  handlers["expert_placement_balanced"] = PlacementBalanced;
  handlers["local_input_scales"] = LocalInputScales;
  handlers["rank_rows"] = RankRows;
  handlers["row_element_offset"] = RowElementOffsetCase;
  handlers["swiglu_clamped"] = SwigluClamped;
  handlers["router_sqrt_softplus"] = RouterSqrtSoftplus;
  handlers["blocked_dot"] = BlockedDot;
  handlers["ones_dot"] = OnesDot;
}

}  // namespace halfbyte
